package routes

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
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

// TestRefused: what IP Helper refuses is an error, and never treated as an empty table.
func TestRefused(t *testing.T) {
	needIPHelper(t)
	table, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	peer := neighbour(t)
	one := Route{Dst: netip.MustParsePrefix("10.244.77.0/24"), Via: peer, Peer: peer, Node: "other"}
	if err := table.Change(t.Context(), Diff{Add: []Route{one}}); err != nil {
		t.Fatal(err)
	}
	two := one
	two.Dst = netip.MustParsePrefix("10.244.78.0/24")
	list := func() error { _, err := table.List(t.Context()); return err }
	changes := func() error { _, err := table.Changes(t.Context()); return err }
	add := func() error { return table.Change(t.Context(), Diff{Add: []Route{two}}) }
	replace := func() error { return table.Change(t.Context(), Diff{Replace: []Replacement{{Old: one, New: two}}}) }
	remove := func() error { return table.Change(t.Context(), Diff{Remove: []Route{one}}) }
	for _, c := range []struct {
		function string
		ask      func() error
	}{
		{"GetIpForwardTable2", list}, {"NotifyRouteChange2", changes}, {"GetIpForwardTable2", add}, {"GetUnicastIpAddressTable", add},
		{"CreateIpForwardEntry2", add}, {"CreateIpForwardEntry2", replace}, {"DeleteIpForwardEntry2", remove},
	} {
		t.Run(c.function, func(t *testing.T) {
			refuse(t, c.function)
			if err := c.ask(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
				t.Errorf("%v, want %v", err, windows.ERROR_ACCESS_DENIED)
			}
		})
	}
	if err := table.Change(t.Context(), Diff{Remove: []Route{one}}); err != nil {
		t.Error(err)
	}
}
