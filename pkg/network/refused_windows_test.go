package network

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// refuse has the simulator of IP Helper fail a function, as Windows itself does not on request.
func refuse(t *testing.T, function string) {
	t.Helper()
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex")
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	t.Setenv("WINKUBE_REFUSE", function)
}

// TestRefused: what IP Helper refuses is an error of whoever asked, never taken for an empty answer.
func TestRefused(t *testing.T) {
	needIPHelper(t)
	host, link := NewHost(), adapter(t)
	own := netip.MustParsePrefix("10.78.0.5/24")
	if err := link.InterfaceLUID.AddIPAddress(own); err != nil {
		t.Fatal(err)
	}
	state := State{Gateways: []Gateway{{Interface: link.Alias(), Address: netip.MustParsePrefix("10.78.1.1/24")}}, Forward: []netip.Addr{own.Addr()}}
	apply := func() error { return host.Apply(t.Context(), state) }
	look := func() error { _, err := host.Look(); return err }
	uplink := func() error { _, err := host.Uplink(own.Addr()); return err }
	restore := func() error {
		return host.Restore(t.Context(), Uplink{Interface: link.Alias(), Addresses: []netip.Prefix{netip.MustParsePrefix("10.78.2.5/24")}})
	}
	changes := func() error { _, err := host.Changes(context.WithoutCancel(t.Context())); return err }
	for _, c := range []struct {
		function string
		ask      func() error
	}{
		{"GetIfTable2Ex", apply}, {"GetUnicastIpAddressTable", apply}, {"CreateUnicastIpAddressEntry", apply}, {"GetIpInterfaceEntry", apply},
		{"GetIfTable2Ex", look}, {"GetUnicastIpAddressTable", look}, {"GetIpForwardTable2", look},
		{"GetIfTable2Ex", uplink}, {"GetIpForwardTable2", uplink}, {"GetIfTable2Ex", restore}, {"CreateUnicastIpAddressEntry", restore},
		{"NotifyIpInterfaceChange", changes},
	} {
		t.Run(c.function, func(t *testing.T) {
			refuse(t, c.function)
			if err := c.ask(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
				t.Errorf("%v, want %v", err, windows.ERROR_ACCESS_DENIED)
			}
		})
	}
	t.Run("Examine", func(t *testing.T) {
		refuse(t, "GetIfTable2Ex")
		var s Symptoms
		if err := host.Examine(t.Context(), &s); err != nil || len(s.Unread) == 0 {
			t.Errorf("%v, unread %q", err, s.Unread)
		}
	})
	if err := link.InterfaceLUID.DeleteIPAddress(own); err != nil {
		t.Error(err)
	}
}
