package app

import (
	"context"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// onSwitch are the addresses of an adapter that comes and goes with a virtual switch of ours.
type onSwitch struct {
	relay.Addresses
	exists func() (bool, error)        // the adapter; an error: not known
	make   func(context.Context) error // the switch, until the adapter is there
}

// Set implements relay.Addresses. A missing switch is made again when an address is wanted; nothing is done if it is unknown whether it exists.
func (a *onSwitch) Set(ctx context.Context, want relay.Local) (answers bool, err error) {
	there, err := a.exists()
	if err != nil {
		return false, err
	}
	if !there {
		if len(want.Addresses) == 0 {
			return false, nil
		}
		if err := a.make(ctx); err != nil {
			return false, err
		}
	}
	return a.Addresses.Set(ctx, want)
}
