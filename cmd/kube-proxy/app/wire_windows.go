package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

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

func adapterExists(name string) bool {
	_, err := relay.NewAddresses(name)
	return err == nil
}

// switchAdapter is the name that the switch's adapter has; empty: there is none.
func switchAdapter() string {
	if i := slices.IndexFunc(switchAdapters, adapterExists); i >= 0 {
		return switchAdapters[i]
	}
	return ""
}

// ownAddresses are those of the internal switch, which is made where it is missing.
func ownAddresses(ctx context.Context) (relay.Addresses, error) {
	name, err := makeSwitch(ctx)
	if err != nil {
		return nil, err
	}
	addresses, err := relay.NewAddresses(name)
	again := func(ctx context.Context) error { _, err := makeSwitch(ctx); return err }
	return &onSwitch{Addresses: addresses, exists: func() bool { return adapterExists(name) }, make: again}, err
}

// makeSwitch makes the switch, waits for its adapter and returns that one's name. It looks every second as well, for a look may fail.
func makeSwitch(ctx context.Context) (string, error) {
	if adapterExists(switchAdapters[0]) {
		return switchAdapters[0], nil
	}
	ctx, cancel := context.WithTimeout(ctx, adapterWait)
	defer cancel()
	hints, watched := network.NewHost().Changes(ctx)
	if err := hns.MakeInternal(internalSwitch); err != nil {
		return "", fmt.Errorf("cannot make the switch %s for service addresses (%s can name an interface instead): %w", internalSwitch, envInterface, err)
	}
	for {
		if name := switchAdapter(); name != "" {
			return name, nil
		}
		select {
		case <-hints:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return "", fmt.Errorf("the switch %s has no adapter %q after %s; %v", internalSwitch, switchAdapters[0], adapterWait, watched)
		}
	}
}

// removeOwn removes the addresses on the switch, and the switch if it is one that HNS made.
func removeOwn(ctx context.Context) error {
	var errs []error
	for _, name := range switchAdapters {
		if addresses, err := relay.NewAddresses(name); err == nil {
			errs = append(errs, addresses.Set(ctx, nil))
		}
	}
	return errors.Join(append(errs, hns.RemoveInternal(internalSwitch))...)
}
