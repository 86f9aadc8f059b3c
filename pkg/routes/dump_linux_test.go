package routes

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/vxlan"
)

// TestListsLikeLibrary: for all sorts of routes and entries, our parser returns the same as the library.
func TestListsLikeLibrary(t *testing.T) {
	tab := namespace(t, "10.1.0.11/24")
	tunnel(t)
	lan, device := index(t, "lan0"), index(t, vxlan.DeviceName(true))
	via := ip(netip.MustParseAddr("10.1.0.12"))
	for i, r := range []*netlink.Route{
		{Gw: via}, // the default route
		{Dst: ipNet(pfx("10.2.0.0/16")), Gw: via, Src: ip(netip.MustParseAddr("10.1.0.11")), Protocol: Protocol},
		{Dst: ipNet(pfx("10.3.0.0/16")), LinkIndex: lan, Scope: netlink.SCOPE_LINK},
		{Dst: ipNet(pfx("10.4.0.0/16")), Type: unix.RTN_BLACKHOLE},
		{Dst: ipNet(pfx("10.5.0.0/16")), Gw: via, Priority: 700},
		{Dst: ipNet(pfx("10.6.0.0/16")), Gw: via, Table: 1000},
		{Dst: ipNet(pfx("10.7.0.0/16")), MultiPath: []*netlink.NexthopInfo{{LinkIndex: lan, Gw: via}, {LinkIndex: lan, Gw: ip(netip.MustParseAddr("10.1.0.13"))}}},
		{Dst: ipNet(pfx("10.8.0.0/24")), Gw: ip(netip.MustParseAddr("10.8.0.0")), LinkIndex: device, Flags: int(netlink.FLAG_ONLINK), Protocol: Protocol},
	} {
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatalf("route %d: %v", i, err)
		}
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for i, n := range []*netlink.Neigh{
		{Family: unix.AF_INET, State: netlink.NUD_PERMANENT, LinkIndex: device, IP: ip(netip.MustParseAddr("10.8.0.0")), HardwareAddr: mac},
		{Family: unix.AF_INET, State: netlink.NUD_STALE, LinkIndex: device, IP: ip(netip.MustParseAddr("10.9.0.0")), HardwareAddr: mac},
		{Family: unix.AF_INET, State: netlink.NUD_PERMANENT, LinkIndex: lan, IP: via, HardwareAddr: mac},
		{Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, LinkIndex: device, IP: via, HardwareAddr: mac},
		{Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, LinkIndex: device, IP: via, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}},
	} {
		if err := netlink.NeighSet(n); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	host, err := tab.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, r := range host.Ours {
		got = append(got, fmt.Sprintf("ours %s", r))
	}
	for _, r := range host.Foreign {
		got = append(got, fmt.Sprintf("foreign %s", r))
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteList(nil, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			bits, _ := r.Dst.Mask.Size()
			route := Route{Dst: netip.PrefixFrom(addr(r.Dst.IP), bits), Via: addr(r.Gw), Src: addr(r.Src)}
			if r.LinkIndex == device {
				route.Device = vxlan.DeviceName(true)
			}
			if r.Protocol == Protocol {
				want = append(want, fmt.Sprintf("ours %s", route))
			} else if r.Priority == metric(family) {
				want = append(want, fmt.Sprintf("foreign %s", route))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 7 || !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_BRIDGE} { // the kernel adds those of IPv6 at any time
		list, err := netlink.NeighList(device, family)
		if err != nil {
			t.Fatal(err)
		}
		var want []entry
		for _, n := range list {
			if len(n.HardwareAddr) == 6 {
				want = append(want, entry{device, addr(n.IP), vxlan.MAC(n.HardwareAddr), n.State&netlink.NUD_PERMANENT != 0})
			}
		}
		if got, err := tab.entries(device, family, 0); err != nil || !slices.Equal(got, want) {
			t.Errorf("family %d: %v, %v, want %v", family, got, err, want)
		}
	}
	if forwards, _ := tab.entries(device, unix.AF_BRIDGE, 0); len(forwards) != 2 {
		t.Errorf("forwarding entries: %v", forwards)
	}
}

func index(t *testing.T, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Index
}

// FuzzDump: nothing panics, whatever the message, and an accepted route has a destination.
func FuzzDump(f *testing.F) {
	f.Add([]byte{2, 16, 0, 0, 254, 157, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 2, 0, 0, 8, 0, 5, 0, 10, 1, 0, 12})
	f.Add([]byte{2, 40, 0, 0, 254, 157, 0, 1, 0, 0, 0, 0, 8, 0, 1, 0, 10, 2, 0, 0})
	f.Add([]byte{7, 0, 0, 0, 3, 0, 0, 0, 128, 0, 2, 0, 10, 0, 2, 0, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0, 1, 0, 10, 1, 0, 12})
	f.Add([]byte{7, 0, 0, 0, 3, 0, 0, 0, 128, 0, 2, 0, 2, 0, 2, 0, 255, 255, 1, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
			if r, ok := parseRoute(m, family); ok && !r.Dst.IsValid() {
				t.Errorf("%v", r)
			}
			if e, ok := parseEntry(m, family); ok && len(m) < unix.SizeofNdMsg+len(e.mac) {
				t.Errorf("%v of %d bytes", e, len(m))
			}
		}
	})
}
