package hostnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/endpoints"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

func needIPHelper(t *testing.T) {
	t.Helper()
	if err := available("CreateUnicastIpAddressEntry"); err != nil {
		t.Skipf("Wine cannot change addresses without the simulator of IP Helper: %v", err)
	}
}

// adapter is an adapter that every host has.
func adapter(t *testing.T) winipcfg.MibIfRow2 {
	t.Helper()
	var err error
	for range 10 { // Wine fails if a Linux interface disappears while it lists them
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
	system, address := New(), netip.MustParsePrefix("10.244.7.1/24")
	state := network.State{Gateways: []network.Gateway{{Interface: link.Alias(), Address: address}}}
	for range 2 { // the second time there is nothing to do
		if err := system.Apply(t.Context(), state); err != nil {
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

// TestDefaultRouteLoops: a default route by which the host would send to itself is removed after its endpoint is attached; the host's own stays.
func TestDefaultRouteLoops(t *testing.T) {
	needIPHelper(t)
	link, system := adapter(t), New()
	luid := link.InterfaceLUID
	gateway, own, all := netip.MustParsePrefix("10.244.8.2/24"), netip.MustParseAddr("10.77.1.1"), netip.MustParsePrefix("0.0.0.0/0")
	if err := errors.Join(luid.AddRoute(all, gateway.Addr(), 0), luid.AddRoute(all, own, 7)); err != nil {
		t.Fatal(err)
	}
	state := network.State{Gateways: []network.Gateway{{Interface: link.Alias(), Address: gateway}}}
	for range 2 {
		if err := system.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	has := func(via netip.Addr) bool {
		return slices.ContainsFunc(rows, func(r winipcfg.MibIPforwardRow2) bool {
			return r.DestinationPrefix.PrefixLength == 0 && r.NextHop.Addr() == via
		})
	}
	if has(gateway.Addr()) || !has(own) {
		t.Errorf("the route to the host itself is there: %t, the host's own: %t", has(gateway.Addr()), has(own))
	}
	if err := errors.Join(luid.DeleteRoute(all, own), luid.DeleteIPAddress(gateway)); err != nil {
		t.Error(err)
	}
}

// TestOverlayWindows: HNS creates the overlay, a running container is attached to it, and leftovers are removed. The simulated host's address is
// 192.168.1.3, its only running container winkube-test.
func TestOverlayWindows(t *testing.T) {
	overlays := Windows()
	o := hns.Overlay{Name: vxlan.DeviceName(true), Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1"),
		VNI: vxlan.VNI, Provider: netip.MustParseAddr("192.168.1.3")}
	if _, err := overlays.PodEndpoints(o.Name); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	if mac, err := overlays.MakeOverlay(o); err != nil || mac == (vxlan.MAC{}) {
		t.Fatalf("%s, %v", mac, err)
	}
	e := endpoints.New(overlays, o.Name)
	e.Use(o.Pods())
	if addrs, err := e.Add(t.Context(), cni.Attachment{ContainerID: "winkube-test", SandboxID: "winkube-test", Netns: "none"}); err != nil || !slices.Equal(addrs, []netip.Addr{netip.MustParseAddr("10.244.1.3")}) {
		t.Errorf("%v, %v", addrs, err)
	}
	if addrs, attached := endpoints.New(overlays, o.Name).Attached("winkube-test", "none"); !attached || len(addrs) != 1 {
		t.Errorf("another agent finds %v, attached %t", addrs, attached)
	}
	if found, err := hns.NewClient().Network(t.Context(), o.Name); err != nil || found.Subnet != o.Subnet {
		t.Errorf("HNS has %+v, %v", found, err)
	}
	none := func(context.Context, []string) (map[string]bool, error) { return nil, nil }
	if err := e.Collect(t.Context(), none); err != nil {
		t.Error(err)
	}
	if left, err := overlays.PodEndpoints(o.Name); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := overlays.RemoveOverlay(o.Name); err != nil {
		t.Error(err)
	}
	if _, err := hns.NewClient().Network(t.Context(), o.Name); !errors.Is(err, hns.ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestApplyWindowsRefuses(t *testing.T) {
	if err := New().Apply(t.Context(), network.State{}); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
	needIPHelper(t)
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		t.Fatal(err)
	}
	gone := network.State{Gateways: []network.Gateway{{Interface: "vEthernet (gone)", Address: netip.MustParsePrefix("10.244.7.1/24")}}}
	if err := New().Apply(t.Context(), gone); err == nil || !strings.Contains(err.Error(), `there is no network adapter "vEthernet (gone)"`) {
		t.Errorf("an adapter that is not there: %v", err)
	}
	rows, err := winipcfg.GetUnicastIPAddressTable(windows.AF_INET)
	if err != nil || len(rows) == 0 {
		t.Fatalf("this host has no address: %v", err)
	}
	for i := range links {
		if links[i].InterfaceLUID != rows[0].InterfaceLUID {
			taken := network.State{Gateways: []network.Gateway{{Interface: links[i].Alias(), Address: netip.PrefixFrom(rows[0].Address.Addr(), 24)}}}
			if err := New().Apply(t.Context(), taken); err == nil || !strings.Contains(err.Error(), "another adapter of this host has it") {
				t.Errorf("an address of another adapter: %v", err)
			}
			return
		}
	}
}

func TestWatchWindows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hints := wake.New()
	wait, err := New().Watch(ctx, hints)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wait() // the subscription has ended
	if err := available("NoSuchProcedure"); err == nil || !strings.Contains(err.Error(), "NoSuchProcedure") {
		t.Errorf("a procedure that this Windows lacks: %v", err)
	}
}

// TestUplinkWindows: the static settings of an adapter are read, and restored after their loss.
func TestUplinkWindows(t *testing.T) {
	needIPHelper(t)
	luid, system := adapter(t).InterfaceLUID, Windows()
	own, via := netip.MustParsePrefix("10.77.0.5/24"), netip.MustParseAddr("10.77.0.1")
	all := netip.MustParsePrefix("0.0.0.0/0")
	if err := errors.Join(luid.AddIPAddress(own), luid.AddRoute(all, via, 5)); err != nil {
		t.Fatal(err)
	}
	before, err := system.Uplink(own.Addr())
	if err != nil || before == nil || !slices.Contains(before.Addresses, own) || !slices.Contains(before.Gateways, via) {
		t.Fatalf("%+v, %v", before, err)
	}
	want := network.Uplink{Interface: before.Interface, Addresses: []netip.Prefix{own}, Gateways: []netip.Addr{via}}
	if err := errors.Join(luid.DeleteIPAddress(own), luid.DeleteRoute(all, via)); err != nil {
		t.Fatal(err)
	}
	if gone, err := system.Uplink(own.Addr()); gone != nil || err != nil {
		t.Errorf("gone: %+v, %v", gone, err)
	}
	for range 2 { // the second time there is nothing to do
		if err := system.Restore(t.Context(), want); err != nil {
			t.Error(err)
		}
	}
	if after, err := system.Uplink(own.Addr()); err != nil || after == nil || !slices.Contains(after.Addresses, own) || !slices.Contains(after.Gateways, via) {
		t.Errorf("restored %+v, %v", after, err)
	}
	if err := errors.Join(luid.DeleteIPAddress(own), luid.DeleteRoute(all, via)); err != nil {
		t.Error(err)
	}
	want.Interface = "gone"
	if err := system.Restore(t.Context(), want); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("no adapter: %v", err)
	}
}
