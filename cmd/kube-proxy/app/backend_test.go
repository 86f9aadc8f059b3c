package app

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// TestOnSwitch: the switch is created only if an address is wanted and its adapter is missing; a failed look does not
// mean that the adapter is missing.
func TestOnSwitch(t *testing.T) {
	there, made := false, 0
	failure, blind := errors.New("no switch"), errors.New("Windows does not list its adapters")
	addresses := relaytest.NewAddresses()
	a := &onSwitch{Addresses: addresses, exists: func() (bool, error) { return there, blind }, make: func(context.Context) error {
		made++
		there = failure == nil
		return failure
	}}
	want := relay.Local{Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	for _, local := range []relay.Local{{}, want} {
		if _, err := a.Set(t.Context(), local); !errors.Is(err, blind) || made > 0 || addresses.Writes() > 0 {
			t.Errorf("not known whether the adapter is there: %v, made %d times", err, made)
		}
	}
	blind = nil
	if _, err := a.Set(t.Context(), relay.Local{}); err != nil || made > 0 {
		t.Errorf("nothing wanted: %v, made %d times", err, made)
	}
	if _, err := a.Set(t.Context(), want); !errors.Is(err, failure) || addresses.Writes() > 0 {
		t.Errorf("no switch: %v", err)
	}
	failure = nil
	for range 2 {
		if _, err := a.Set(t.Context(), want); err != nil || made != 2 || addresses.String() != "10.96.0.1" {
			t.Errorf("%v, made %d times, addresses %s", err, made, addresses)
		}
	}
}

func TestHardwareAddress(t *testing.T) {
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil || len(addrs) == 0 || len(link.HardwareAddr) == 0 {
			continue
		}
		addr, _ := netip.AddrFromSlice(addrs[0].(*net.IPNet).IP)
		if got := hardwareAddress(addr.Unmap()); got != link.HardwareAddr.String() {
			t.Errorf("%s has %q, want %s", addr, got, link.HardwareAddr)
		}
	}
	if got := hardwareAddress(netip.MustParseAddr("203.0.113.99")); got != "" {
		t.Errorf("an unused address has %q", got)
	}
}

func TestConnectMode(t *testing.T) {
	t.Setenv(envInterface, "")
	t.Setenv("KUBE_NETWORK", "")
	for _, c := range []struct {
		args, backEnd, mode string
		facts               host.Facts
	}{
		{"--proxy-mode=connect", byConnect, "connect", linux},
		{"--proxy-mode=auto", byConnect, "connect", linux},
		{"", byRelay, "userspace", linux},
		{"--proxy-mode=auto", byRelay, "userspace", windows},
		{"--proxy-mode=auto --network-mode=overlay", byHNS, "kernelspace", windows},
	} {
		o, _ := mustParse(t, strings.Fields("--master=x --connect-cgroup=/sys/fs/cgroup/x "+c.args)...)
		s, err := o.settings(c.facts)
		if err != nil || s.backEnd != c.backEnd || s.config.Mode != c.mode || s.connectCgroup != "/sys/fs/cgroup/x" {
			t.Errorf("%s on %s: %v, %+v", c.args, c.facts.OS, err, s)
		}
	}
	o, _ := mustParse(t, "--master=x", "--proxy-mode=connect")
	if _, err := o.settings(windows); err == nil || !strings.Contains(err.Error(), "--proxy-mode=connect: want auto, userspace, on Linux connect") {
		t.Errorf("connect on Windows: %v", err)
	}
}
