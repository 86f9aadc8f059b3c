package app

import (
	"context"
	"net/netip"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// onSwitch are the addresses of an adapter that comes and goes with a virtual switch of ours.
type onSwitch struct {
	relay.Addresses
	exists func() (bool, error)        // the adapter; an error: not known
	make   func(context.Context) error // the switch, until the adapter is there
}

// Set implements relay.Addresses. A missing switch is made again when an address is wanted; nothing is done if it is unknown whether it exists.
func (a *onSwitch) Set(ctx context.Context, want []netip.Addr) error {
	there, err := a.exists()
	if err != nil {
		return err
	}
	if !there {
		if len(want) == 0 {
			return nil
		}
		if err := a.make(ctx); err != nil {
			return err
		}
	}
	return a.Addresses.Set(ctx, want)
}
