package routes

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// namespace moves the test into a separate network namespace with one interface that has addr. The thread is never
// unlocked.
func namespace(t testing.TB, addr string) *routingTable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}
	peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan1"}}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	a.Flags = unix.IFA_F_NODAD // no duplicate address detection
	for _, err := range []error{netlink.LinkAdd(link), netlink.AddrAdd(link, a), netlink.LinkSetUp(link), netlink.LinkSetUp(peer)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tab, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	return tab.(*routingTable)
}

func shown(t *testing.T, tab RoutingTable) string {
	t.Helper()
	h, err := tab.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, r := range h.Ours {
		b.WriteString(r.String() + "\n")
	}
	return b.String()
}

func TestKernel(t *testing.T) {
	tab := namespace(t, "10.1.0.11/24")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	foreign := &netlink.Route{Dst: ipNet(pfx("192.168.9.0/24")), Gw: ip(netip.MustParseAddr("10.1.0.77"))}
	if err := netlink.RouteAdd(foreign); err != nil {
		t.Fatal(err)
	}
	nodes := append(seeds(), node("Lin09", "10.1.0.19", "192.168.9.0/24"), node("far", "10.2.0.1", "192.168.4.0/24"))
	state, _ := Plan(HostGateway, "Lin01", nodes, Options{})
	_, err := Apply(ctx, tab, state)
	if err == nil || !strings.Contains(err.Error(), "192.168.9.0/24 via 10.1.0.77 is there") || !strings.Contains(err.Error(), "no interface of this host is in the network of 10.2.0.1") {
		t.Errorf("error: %v", err)
	}
	const want = "192.168.1.0/24 via 10.1.0.12 src 10.1.0.11\n192.168.2.0/24 via 10.1.0.13 src 10.1.0.11\n"
	if got := shown(t, tab); got != want {
		t.Fatalf("table:\n%s", got)
	}
	state, _ = Plan(HostGateway, "Lin01", seeds(), Options{})
	if d, err := Apply(ctx, tab, state); err != nil || !d.Empty() {
		t.Errorf("second Apply: %+v, %v", d, err)
	}
	hints, err := tab.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteDel(&netlink.Route{Dst: ipNet(pfx("192.168.1.0/24"))}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(time.Minute):
		t.Fatal("no hint that a route was deleted")
	}
	moved := seeds()
	moved[2].Status.Addresses[0].Address = "10.1.0.99"
	state, _ = Plan(HostGateway, "Lin01", moved, Options{})
	if d, err := Apply(ctx, tab, state); err != nil || len(d.Add) != 1 || len(d.Replace) != 1 {
		t.Errorf("repair: %+v, %v", d, err)
	}
	state, _ = Plan(HostGateway, "Lin01", seeds(), Options{NextHop: PodGateway})
	if _, err := Apply(ctx, tab, state); err != nil {
		t.Errorf("pod gateway: %v", err)
	}
	if got := shown(t, tab); got != "192.168.1.0/24 via 192.168.1.1 src 10.1.0.11\n192.168.2.0/24 via 192.168.2.1 src 10.1.0.11\n" {
		t.Errorf("pod gateway:\n%s", got)
	}
	if err := Cleanup(ctx, tab); err != nil || shown(t, tab) != "" {
		t.Errorf("cleanup: %v, left %s", err, shown(t, tab))
	}
	h, err := tab.List(ctx)
	if err != nil || len(h.Foreign) != 2 { // lan0's own and the planted one
		t.Errorf("foreign routes: %v, %v", h.Foreign, err)
	}
}

func TestKernelIPv6(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skipf("this kernel has no IPv6: %v", err)
	}
	tab := namespace(t, "fd00:1::11/64")
	nodes := []*v1.Node{node("Lin01", "fd00:1::11", "fd00:244::/64"), node("b", "fd00:1::12", "fd00:244:1::/64")}
	state, _ := Plan(HostGateway, "Lin01", nodes, Options{})
	if _, err := Apply(t.Context(), tab, state); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, tab); got != "fd00:244:1::/64 via fd00:1::12 src fd00:1::11\n" {
		t.Errorf("table:\n%s", got)
	}
	if d, err := Apply(t.Context(), tab, state); err != nil || !d.Empty() {
		t.Errorf("second Apply: %+v, %v", d, err)
	}
	if err := Cleanup(t.Context(), tab); err != nil || shown(t, tab) != "" {
		t.Errorf("cleanup: %v", err)
	}
}

// BenchmarkKernel1000 adds the routes of a thousand nodes to the kernel's table.
func BenchmarkKernel1000(b *testing.B) {
	tab := namespace(b, "172.16.0.1/16")
	nodes := thousand()
	for b.Loop() {
		state, _ := Plan(HostGateway, "n0000", nodes, Options{})
		if _, err := Apply(b.Context(), tab, state); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := Cleanup(b.Context(), tab); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// TestWithoutSysAdmin: a process that may not change namespaces, such as one in a container, reads and watches the routes of its network.
func TestWithoutSysAdmin(t *testing.T) {
	namespace(t, "192.0.2.1/24") // the thread's, which is locked
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		t.Fatal(err)
	}
	less := before
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	if err := unix.Capset(&header, &less[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Capset(&header, &before[0]); err != nil {
			t.Error(err)
		}
	})
	table, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.List(t.Context()); err != nil {
		t.Error(err)
	}
	hints, err := table.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("lan0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(10 * time.Second):
		t.Error("an interface went down, and no change was reported")
	}
}
