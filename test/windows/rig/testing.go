package rig

import (
	"net"
	"os"
	"testing"
)

// Test opens a prefix for one test and closes it with the test. Without WINKUBE_WINE=1 in the environment the test is skipped: what runs
// under Wine runs in `make test-windows`.
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
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// HostAddress is an address of this machine with the hardware address behind it, which programs under Wine find too. Where there is none the test is
// skipped.
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
