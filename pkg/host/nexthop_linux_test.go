package host

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// TestNextHops: gateways of default and other routes, including multipath ones, but not those of our own routes.
func TestNextHops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		before.Close()
		space.Close()
		runtime.UnlockOSThread()
	}()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "card"}, PeerName: "wire"}
	must(netlink.LinkAdd(link))
	must(netlink.LinkSetUp(link))
	for _, text := range []string{"10.1.0.11/24", "fd01::11/64"} {
		addr, err := netlink.ParseAddr(text)
		must(err)
		addr.Flags = 2 // no duplicate address detection (IFA_F_NODAD), which takes a second
		must(netlink.AddrAdd(link, addr))
	}
	network := func(text string) *net.IPNet {
		_, n, err := net.ParseCIDR(text)
		must(err)
		return n
	}
	const mark = 157
	changed := make(chan struct{}, 100)
	must(WatchNextHops(t.Context(), mark, func() { changed <- struct{}{} }))
	for _, r := range []netlink.Route{
		{Gw: net.ParseIP("10.1.0.1")},
		{Gw: net.ParseIP("fd01::1")},
		{Dst: network("10.9.0.0/16"), Gw: net.ParseIP("10.1.0.2")},
		{Dst: network("10.10.0.0/16"), Gw: net.ParseIP("10.1.0.2")},
		{Dst: network("10.244.2.0/24"), Gw: net.ParseIP("10.1.0.12"), Protocol: mark},
		{Dst: network("10.8.0.0/16"), MultiPath: []*netlink.NexthopInfo{{LinkIndex: link.Index, Gw: net.ParseIP("10.1.0.3")}, {LinkIndex: link.Index, Gw: net.ParseIP("10.1.0.4")}}},
	} {
		must(netlink.RouteAdd(&r))
	}
	got, err := NextHops(mark)
	must(err)
	if want := "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4 fd01::1]"; fmt.Sprint(got) != want {
		t.Errorf("next hops are %v, want %s", got, want)
	}
	for range 5 { // all routes but the marked one
		<-changed
	}
	must(netlink.RouteDel(&netlink.Route{Gw: net.ParseIP("10.1.0.1")}))
	<-changed
	if n := len(changed); n > 0 {
		t.Errorf("%d changes more", n)
	}
}
