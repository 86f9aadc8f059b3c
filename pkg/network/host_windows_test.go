package network

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

func needIPHelper(t *testing.T) {
	t.Helper()
	if err := available("CreateUnicastIpAddressEntry"); err != nil {
		t.Skipf("Wine cannot change addresses without the simulator of IP Helper: %v", err)
	}
}

// adapter is one that every host has.
func adapter(t *testing.T) winipcfg.MibIfRow2 {
	t.Helper()
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil || len(links) == 0 {
		t.Fatalf("no adapters: %v", err)
	}
	return links[0]
}

func TestApplyWindows(t *testing.T) {
	needIPHelper(t)
	link := adapter(t)
	host, address := NewHost(), netip.MustParsePrefix("10.244.7.1/24")
	state := State{Gateways: []Gateway{{Interface: link.Alias(), Address: address}}}
	for range 2 { // the second time nothing is to do
		if err := host.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := winipcfg.GetUnicastIPAddressTable(windows.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	holds := func(r winipcfg.MibUnicastIPAddressRow) bool {
		return r.InterfaceLUID == link.InterfaceLUID && r.Address.Addr() == address.Addr() && int(r.OnLinkPrefixLength) == address.Bits()
	}
	if !slices.ContainsFunc(rows, holds) {
		t.Errorf("%s does not hold %s", link.Alias(), address)
	}
	if row, err := link.InterfaceLUID.IPInterface(windows.AF_INET); err != nil || !row.ForwardingEnabled {
		t.Errorf("forwarding on %s: %+v %v", link.Alias(), row, err)
	}
}

func TestApplyWindowsRefuses(t *testing.T) {
	if err := NewHost().Apply(t.Context(), State{}); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
	needIPHelper(t)
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		t.Fatal(err)
	}
	gone := State{Gateways: []Gateway{{Interface: "vEthernet (gone)", Address: netip.MustParsePrefix("10.244.7.1/24")}}}
	if err := NewHost().Apply(t.Context(), gone); err == nil || !strings.Contains(err.Error(), `there is no network adapter "vEthernet (gone)"`) {
		t.Errorf("an adapter that is not there: %v", err)
	}
	rows, err := winipcfg.GetUnicastIPAddressTable(windows.AF_INET)
	if err != nil || len(rows) == 0 {
		t.Fatalf("this host has no address: %v", err)
	}
	for i := range links {
		if links[i].InterfaceLUID != rows[0].InterfaceLUID {
			taken := State{Gateways: []Gateway{{Interface: links[i].Alias(), Address: netip.PrefixFrom(rows[0].Address.Addr(), 24)}}}
			if err := NewHost().Apply(t.Context(), taken); err == nil || !strings.Contains(err.Error(), "another adapter of this host has it") {
				t.Errorf("an address of another adapter: %v", err)
			}
			return
		}
	}
}

func TestHostChangesWindows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hints, err := NewHost().Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // ends the subscription; who still waits does so on ctx
	select {
	case <-hints:
	case <-ctx.Done():
	}
	if err := available("NoSuchProcedure"); err == nil || !strings.Contains(err.Error(), "NoSuchProcedure") {
		t.Errorf("a procedure that this Windows lacks: %v", err)
	}
}
