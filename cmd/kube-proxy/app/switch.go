package app

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// onSwitch sets the addresses of an adapter that exists only while our virtual switch does.
type onSwitch struct {
	relay.Addresses
	name   string                      // of the adapter
	exists func() (bool, error)        // whether the adapter exists; an error: unknown
	make   func(context.Context) error // creates the switch and waits for the adapter
}

// Set implements relay.Addresses. It recreates a missing switch when an address is wanted, and does nothing if it
// cannot find out whether the switch exists.
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

// switchMaker finds the adapter of the switch for service addresses, and creates the switch if there is none. No source
// guarantees that every HNS creates an internal network without a subnet. So a refusal is not fatal if an adapter with
// another name can be used.
type switchMaker struct {
	names  []string                   // names of the adapter, best first: only the first counts before the switch was created
	exists func(string) (bool, error) // an error: unknown
	create func() error

	asked   bool
	refused error // error of create
}

// step looks once for the adapter, and creates the switch the first time that it is known to be missing. No name and no
// error: the adapter does not exist yet.
func (m *switchMaker) step() (name string, err error) {
	names := m.names
	if !m.asked {
		names = names[:1]
	}
	name, err = m.first(names)
	if name != "" || err != nil || m.asked {
		return name, err
	}
	m.asked, m.refused = true, m.create()
	return m.first(m.names)
}

// first returns the first of the names that an adapter has.
func (m *switchMaker) first(names []string) (string, error) {
	var errs []error
	for _, name := range names {
		there, err := m.exists(name)
		if there {
			return name, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}
