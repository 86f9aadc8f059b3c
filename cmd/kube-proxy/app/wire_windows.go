package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/connect"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/wake"
)

// newPlane returns the plane that carries the relay's data.
func newPlane() relay.NewPlane { return relay.Goroutines }

// connectKernel is never called: --proxy-mode=connect is only for Linux.
func connectKernel(string) connect.Kernel { return nil }

func removeConnect(string) error { return nil }

// newPackets returns nil: Windows has no packet filter that could serve SCTP.
func newPackets(relay.Addresses, []netip.Prefix) proxy.Backend { return nil }

func removePackets(context.Context) error { return nil }

// tune changes nothing: the relay needs no other settings on Windows.
func tune(int) {}

func untune() error { return nil }

func newSystem() system {
	return system{hns: hns.NewClient(), watchHNS: hns.Watch, netsh: netsh.New(command.New())}
}

// internalSwitch has the service addresses if no interface is configured. Administrators created it with New-VMSwitch
// for the first releases; such a switch is reused.
const internalSwitch = "KubeProxySwitch"

// switchAdapters are the possible names of its adapter, best first: HNS of Server 2016 gives internal adapters the
// second.
var switchAdapters = []string{"vEthernet (" + internalSwitch + ")", "vEthernet (HNS Internal NIC)"}

// adapterWait is how long Windows may take to add the adapter of a new switch.
const adapterWait = 30 * time.Second

// adapterExists reports whether the host has an adapter of that name. An error: unknown, because a look may fail.
func adapterExists(name string) (bool, error) {
	_, err := addresses.New(name)
	if errors.Is(err, addresses.ErrNoInterface) {
		return false, nil
	}
	return err == nil, err
}

// ownAddresses returns the addresses of the internal switch, which it creates if it is missing.
func ownAddresses(ctx context.Context) (relay.Addresses, error) {
	name, err := makeSwitch(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := addresses.New(name) // just seen, and each Set checks again
	again := func(ctx context.Context) error { _, err := makeSwitch(ctx); return err }
	return &onSwitch{Addresses: held, name: name, exists: func() (bool, error) { return adapterExists(name) }, make: again}, nil
}

// makeSwitch creates the switch if its adapter is known to be missing, waits for the adapter and returns its name. It
// also looks every second, because a look may fail.
func makeSwitch(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, adapterWait)
	hints := wake.New()
	wait, watched := hostnet.New().Watch(ctx, hints)
	defer func() { cancel(); wait() }()
	m := switchMaker{names: switchAdapters, exists: adapterExists, create: func() error { return hns.MakeInternal(internalSwitch) }}
	for {
		name, err := m.step()
		if name != "" {
			return name, nil
		}
		if m.refused != nil && err == nil {
			return "", fmt.Errorf("cannot make the switch %s for service addresses (%s can name an interface instead): %w", internalSwitch, envInterface, m.refused)
		}
		select {
		case <-hints:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("the switch %s has no adapter %q after %s", internalSwitch, switchAdapters[0], adapterWait), err, m.refused, watched)
		}
	}
}

// removeOwn removes the addresses on the switch, and the switch if HNS created it.
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
