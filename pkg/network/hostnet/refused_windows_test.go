package hostnet

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/wake"
)

// refuse makes the simulator of IP Helper fail a function, which Windows itself does not do on request.
func refuse(t *testing.T, function string) {
	t.Helper()
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex")
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	t.Setenv("WINKUBE_REFUSE", function)
}

// TestRefused: what IP Helper refuses is an error, never an empty answer.
func TestRefused(t *testing.T) {
	needIPHelper(t)
	system, link := New(), adapter(t)
	own := netip.MustParsePrefix("10.78.0.5/24")
	if err := link.InterfaceLUID.AddIPAddress(own); err != nil {
		t.Fatal(err)
	}
	state := network.State{Gateways: []network.Gateway{{Interface: link.Alias(), Address: netip.MustParsePrefix("10.78.1.1/24")}}, Forward: []netip.Addr{own.Addr()}}
	apply := func() error { return system.Apply(t.Context(), state) }
	look := func() error { _, err := system.Look(); return err }
	uplink := func() error { _, err := Windows().Uplink(own.Addr()); return err }
	restore := func() error {
		return Windows().Restore(t.Context(), network.Uplink{Interface: link.Alias(), Addresses: []netip.Prefix{netip.MustParsePrefix("10.78.2.5/24")}})
	}
	watch := func() error { _, err := system.Watch(t.Context(), wake.New()); return err }
	for _, c := range []struct {
		function string
		ask      func() error
	}{
		{"GetIfTable2Ex", apply}, {"GetUnicastIpAddressTable", apply}, {"CreateUnicastIpAddressEntry", apply}, {"GetIpInterfaceEntry", apply}, {"GetIpForwardTable2", apply},
		{"GetIfTable2Ex", look}, {"GetUnicastIpAddressTable", look}, {"GetIpForwardTable2", look},
		{"GetIfTable2Ex", uplink}, {"GetIpForwardTable2", uplink}, {"GetIfTable2Ex", restore}, {"CreateUnicastIpAddressEntry", restore},
		{"NotifyIpInterfaceChange", watch},
	} {
		t.Run(c.function, func(t *testing.T) {
			refuse(t, c.function)
			if err := c.ask(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
				t.Errorf("%v, want %v", err, windows.ERROR_ACCESS_DENIED)
			}
		})
	}
	if err := link.InterfaceLUID.DeleteIPAddress(own); err != nil {
		t.Error(err)
	}
}
