package addresses

import (
	"errors"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// refuse makes the simulator of IP Helper fail a function; Windows itself does not do that on request.
func refuse(t *testing.T, function string) {
	t.Helper()
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex")
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	t.Setenv("WINKUBE_REFUSE", function)
}

// TestRefused: what IP Helper refuses is an error, and never treated as a host without addresses.
func TestRefused(t *testing.T) {
	needIPHelper(t)
	a, err := New(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Set(t.Context(), relay.Local{Addresses: addrs("10.96.7.1")}); err != nil {
		t.Fatal(err)
	}
	more := func() error {
		_, err := a.Set(t.Context(), relay.Local{Addresses: addrs("10.96.7.1", "10.96.7.2")})
		return err
	}
	other := func() error {
		_, err := a.Set(t.Context(), relay.Local{Addresses: addrs("fd00:96::7")})
		return err
	}
	less := func() error { _, err := a.Set(t.Context(), relay.Local{}); return err }
	host := func() error { _, err := a.Host(); return err }
	changes := func() error { _, err := a.Changes(t.Context()); return err }
	for _, c := range []struct {
		function string
		ask      func() error
	}{
		{"GetIfTable2Ex", more}, {"GetUnicastIpAddressTable", more}, {"CreateUnicastIpAddressEntry", more}, {"DeleteUnicastIpAddressEntry", less},
		{"GetIfTable2Ex", host}, {"GetUnicastIpAddressTable", host}, {"NotifyUnicastIpAddressChange", changes},
		{"GetIpInterfaceEntry", more}, {"SetIpInterfaceEntry", other},
	} {
		t.Run(c.function, func(t *testing.T) {
			refuse(t, c.function)
			if err := c.ask(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
				t.Errorf("%v, want %v", err, windows.ERROR_ACCESS_DENIED)
			}
		})
	}
	if _, err := a.Set(t.Context(), relay.Local{}); err != nil {
		t.Error(err)
	}
}
