package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/wake"
)

// newPlane is what carries the relay's data.
func newPlane() relay.NewPlane { return relay.Goroutines }

// tune changes nothing: Windows has no settings that the relay wants otherwise.
func tune() {}

func untune() error { return nil }

func newSystem() system {
	return system{hns: hns.NewClient(), watchHNS: hns.Watch, netsh: netsh.New(command.New())}
}

// internalSwitch holds the addresses of services where no interface is named: the switch that administrators made by New-VMSwitch for the first
// releases. One that they made is used.
const internalSwitch = "KubeProxySwitch"

// switchAdapters are the names that its adapter may have, the better first: HNS of Server 2016 gives internal adapters the second.
var switchAdapters = []string{"vEthernet (" + internalSwitch + ")", "vEthernet (HNS Internal NIC)"}

// adapterWait is how long Windows may take from a new switch to its adapter.
const adapterWait = 30 * time.Second

// adapterExists says whether the host has an adapter of that name. An error: not known, for a look may fail.
func adapterExists(name string) (bool, error) {
	_, err := addresses.New(name)
	if errors.Is(err, addresses.ErrNoInterface) {
		return false, nil
	}
	return err == nil, err
}

// firstAdapter is the first of the names that an adapter has; empty: none has it, or, with an error, none is known to.
func firstAdapter(names []string) (string, error) {
	var errs []error
	for _, name := range names {
		there, err := adapterExists(name)
		if there {
			return name, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// ownAddresses are those of the internal switch, which is made where it is missing.
func ownAddresses(ctx context.Context) (relay.Addresses, error) {
	name, err := makeSwitch(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := addresses.New(name) // was seen just now, and each Set looks again
	again := func(ctx context.Context) error { _, err := makeSwitch(ctx); return err }
	return &onSwitch{Addresses: held, exists: func() (bool, error) { return adapterExists(name) }, make: again}, nil
}

// makeSwitch makes the switch where its adapter is known to be missing, waits for that and returns its name. It looks every second as well, for
// a look may fail.
func makeSwitch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, adapterWait)
	hints := wake.New()
	wait, watched := hostnet.New().Watch(ctx, hints)
	defer func() { cancel(); wait() }()
	for names := switchAdapters[:1]; ; {
		name, err := firstAdapter(names)
		if name != "" {
			return name, nil
		}
		if err == nil && len(names) < len(switchAdapters) {
			if err := hns.MakeInternal(internalSwitch); err != nil {
				return "", fmt.Errorf("cannot make the switch %s for service addresses (%s can name an interface instead): %w", internalSwitch, envInterface, err)
			}
			names = switchAdapters
			continue
		}
		select {
		case <-hints:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("the switch %s has no adapter %q after %s", internalSwitch, switchAdapters[0], adapterWait), err, watched)
		}
	}
}

// removeOwn removes the addresses on the switch, and the switch if it is one that HNS made.
func removeOwn(ctx context.Context) error {
	var errs []error
	for _, name := range switchAdapters {
		held, err := addresses.New(name)
		switch {
		case err == nil:
			errs = append(errs, holdNothing(ctx, held))
		case !errors.Is(err, addresses.ErrNoInterface):
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, hns.RemoveInternal(internalSwitch))...)
}
