package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
)

// Test opens a prefix for a test and closes it when the test ends. Counters of Counted programs are written to a profile. It skips the test unless
// WINKUBE_WINE=1 is set, as in `make test-windows`.
func Test(t *testing.T, build int) *Prefix {
	t.Helper()
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("needs Wine: run make test-windows, or set WINKUBE_WINE=1")
	}
	p, err := Open(t.Context(), build)
	if err != nil {
		t.Fatal(err)
	}
	p.Log = t.Output()
	if len(p.noise) > 0 {
		t.Logf("libraries print this to every program's standard error: %q", p.noise)
	}
	t.Cleanup(func() {
		profile := p.WriteProfile(fmt.Sprintf("%s-%s-%d", suite(), t.Name(), build))
		if err := errors.Join(profile, p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// HostAdapter returns the name of the interface with HostAddress. Programs under Wine see it too.
func HostAdapter(t *testing.T) string {
	t.Helper()
	_, mac := HostAddress(t)
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(links, func(l net.Interface) bool { return l.HardwareAddr.String() == mac })
	return links[i].Name
}

// HostAddress returns an address of this machine with its MAC address, which programs under Wine see too. It skips the test if there is none.
func HostAddress(t *testing.T) (ip, mac string) {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil || len(link.HardwareAddr) == 0 || link.Flags&net.FlagUp == 0 {
			continue
		}
		for _, addr := range addrs {
			if n, ok := addr.(*net.IPNet); ok && n.IP.To4() != nil {
				return n.IP.String(), link.HardwareAddr.String()
			}
		}
	}
	t.Skip("no interface of this machine has a hardware address and an IPv4 address")
	return "", ""
}
