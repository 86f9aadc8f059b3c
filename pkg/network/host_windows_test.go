package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
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
	var err error
	for range 10 { // Wine fails when an interface of Linux goes while it lists them
		var links []winipcfg.MibIfRow2
		if links, err = winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil && len(links) > 0 {
			return links[0]
		}
	}
	t.Fatalf("no adapters: %v", err)
	return winipcfg.MibIfRow2{}
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

// TestOverlayWindows: HNS makes the overlay, a container that runs is connected to it, and what is left behind is taken back. The simulated host's
// address is 192.168.1.3, its one container that runs winkube-test.
func TestOverlayWindows(t *testing.T) {
	host := NewHost()
	overlays, ok := host.(Overlays)
	if !ok {
		t.Fatal("this host has no overlays")
	}
	o := theOverlay
	o.VNI, o.Provider = vxlan.VNI, netip.MustParseAddr("192.168.1.3")
	if _, err := overlays.PodEndpoints(o.Name); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	if mac, err := overlays.MakeOverlay(o); err != nil || mac == (vxlan.MAC{}) {
		t.Fatalf("%s, %v", mac, err)
	}
	e := newEndpoints(overlays, o.Name)
	e.use(o)
	if addrs, err := e.Add(t.Context(), infra("winkube-test")); err != nil || !slices.Equal(addrs, []netip.Addr{netip.MustParseAddr("10.244.1.3")}) {
		t.Errorf("%v, %v", addrs, err)
	}
	if addrs, attached := newEndpoints(overlays, o.Name).Attached("winkube-test", "none"); !attached || len(addrs) != 1 {
		t.Errorf("another agent finds %v, attached %t", addrs, attached)
	}
	s := Symptoms{Config: Config{Mode: Overlay}}
	if err := host.Examine(t.Context(), &s); err != nil || s.OverlayErr != nil || s.Overlay.Subnet != o.Subnet {
		t.Errorf("examined: %+v, %v, %v", s.Overlay, s.OverlayErr, err)
	}
	nobody := func(context.Context) (map[string]bool, error) { return nil, nil }
	if err := e.Collect(t.Context(), nobody); err != nil {
		t.Error(err)
	}
	if left, err := overlays.PodEndpoints(o.Name); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := overlays.RemoveOverlay(o.Name); err != nil {
		t.Error(err)
	}
	if err := host.Examine(t.Context(), &s); err != nil || !errors.Is(s.OverlayErr, hns.ErrNotFound) {
		t.Errorf("afterwards: %v, %v", s.OverlayErr, err)
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

// TestUplinkWindows: what an adapter has by hand is read, and given back when it is gone.
func TestUplinkWindows(t *testing.T) {
	needIPHelper(t)
	luid, host := adapter(t).InterfaceLUID, NewHost()
	own, via := netip.MustParsePrefix("10.77.0.5/24"), netip.MustParseAddr("10.77.0.1")
	all := netip.MustParsePrefix("0.0.0.0/0")
	if err := errors.Join(luid.AddIPAddress(own), luid.AddRoute(all, via, 5)); err != nil {
		t.Fatal(err)
	}
	before, err := host.Uplink(own.Addr())
	if err != nil || before == nil || !slices.Contains(before.Addresses, own) || !slices.Contains(before.Gateways, via) {
		t.Fatalf("%+v, %v", before, err)
	}
	want := Uplink{Interface: before.Interface, Addresses: []netip.Prefix{own}, Gateways: []netip.Addr{via}}
	if err := errors.Join(luid.DeleteIPAddress(own), luid.DeleteRoute(all, via)); err != nil {
		t.Fatal(err)
	}
	if gone, err := host.Uplink(own.Addr()); gone != nil || err != nil {
		t.Errorf("gone: %+v, %v", gone, err)
	}
	for range 2 { // the second time nothing is to do
		if err := host.Restore(t.Context(), want); err != nil {
			t.Error(err)
		}
	}
	if after, err := host.Uplink(own.Addr()); err != nil || want.lacks(after) != "" {
		t.Errorf("restored %+v, %v", after, err)
	}
	if err := errors.Join(luid.DeleteIPAddress(own), luid.DeleteRoute(all, via)); err != nil {
		t.Error(err)
	}
	want.Interface = "gone"
	if err := host.Restore(t.Context(), want); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("no adapter: %v", err)
	}
}
