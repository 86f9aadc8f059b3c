package app

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// newSystem has nothing: Linux is served by sockets alone.
func newSystem() system { return system{} }

// ownAddresses are those of a dummy interface, which is made with the first address.
func ownAddresses(context.Context) (relay.Addresses, error) { return relay.NewAddresses("") }

// removeOwn removes that interface, the routes and rules beside it, and the setting that the relay changed.
func removeOwn(ctx context.Context) error {
	addresses, err := relay.NewAddresses("")
	if err != nil {
		return err
	}
	return errors.Join(addresses.Set(ctx, nil), relay.RestorePorts())
}
