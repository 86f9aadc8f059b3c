package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/winkube/winkube/pkg/vxlan"
)

// tunnel creates the device that the kubelet of Lin01 creates.
func tunnel(t testing.TB) {
	t.Helper()
	link := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: vxlan.DeviceName(true)}, VxlanId: vxlan.VNI, Port: vxlan.Port, SrcAddr: ip(netip.MustParseAddr("10.1.0.11"))}
	if err := netlink.LinkAdd(link); err != nil {
		t.Skipf("this kernel makes no VXLAN device: %v", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

func peersShown(t *testing.T, tab RoutingTable) string {
	t.Helper()
	h, err := tab.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(h.Peers, func(a, b Peer) int { return a.Inner.Compare(b.Inner) })
	return (State{Routes: h.Ours, Peers: h.Peers}).String()
}

func TestKernelOverlay(t *testing.T) {
	tab := namespace(t, "10.1.0.11/24")
	ctx := t.Context()
	state, problems := Plan(Overlay, "Lin01", announce(seeds()...), Options{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	_, err := Apply(ctx, tab, state)
	if err == nil || !strings.Contains(err.Error(), "this host has no interface winkube.4096, which a kubelet with --network-mode=overlay makes") {
		t.Errorf("without the device: %v", err)
	}
	tunnel(t)
	if _, err := Apply(ctx, tab, state); err != nil {
		t.Fatal(err)
	}
	strip := func(s string) string { return strings.NewReplacer(" # Win01", " # ", " # Win02", " # ").Replace(s) }
	want := strip(state.String())
	if got := peersShown(t, tab); got != want {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	if d, err := Apply(ctx, tab, state); err != nil || !d.Empty() {
		t.Errorf("the same again: %+v, %v", d, err)
	}
	hints, err := tab.Changes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(vxlan.DeviceName(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*netlink.Neigh{state.Peers[0].forward(), state.Peers[1].neighbour()} {
		n.LinkIndex = link.Attrs().Index
		if err := netlink.NeighDel(n); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(time.Minute):
			t.Fatal("no hint that an entry of the tunnel was deleted")
		}
		if d, err := Apply(ctx, tab, state); err != nil || len(d.SetPeers) != 1 || peersShown(t, tab) != want {
			t.Errorf("repair: %+v, %v\n%s", d, err, peersShown(t, tab))
		}
	}
	// A node that moved, one that has gone, and finally the other mode.
	moved := announce(seeds()[:2]...)
	moved[1].Annotations["flannel.alpha.coreos.com/public-ip"] = "10.1.0.99"
	if state, _ = Plan(Overlay, "Lin01", moved, Options{}); len(state.Peers) != 1 {
		t.Fatal(state)
	}
	if _, err := Apply(ctx, tab, state); err != nil || strip(state.String()) != peersShown(t, tab) {
		t.Errorf("%v\n%s", err, peersShown(t, tab))
	}
	gateway, _ := Plan(HostGateway, "Lin01", seeds(), Options{})
	if _, err := Apply(ctx, tab, gateway); err != nil || strings.Contains(peersShown(t, tab), vxlan.DeviceName(true)) {
		t.Errorf("left of the overlay: %v\n%s", err, peersShown(t, tab))
	}
}

// BenchmarkKernelOverlay1000 adds the tunnel ends of a thousand nodes.
func BenchmarkKernelOverlay1000(b *testing.B) {
	tab := namespace(b, "10.1.0.11/8")
	tunnel(b)
	nodes := announce(thousand()...)
	for b.Loop() {
		state, _ := Plan(Overlay, "n0000", nodes, Options{})
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

// BenchmarkKernelChange1000 changes the address of one node of a thousand, including planning and listing.
func BenchmarkKernelChange1000(b *testing.B) {
	for _, mode := range []Mode{HostGateway, Overlay} {
		b.Run(string(mode), func(b *testing.B) {
			tab := namespace(b, "172.16.0.1/16")
			tunnel(b)
			nodes := announce(thousand()...)
			for i := 0; b.Loop(); i++ {
				moved := fmt.Sprintf("172.16.200.%d", i%250+1)
				nodes[500].Status.Addresses[0].Address, nodes[500].Annotations["flannel.alpha.coreos.com/public-ip"] = moved, moved
				state, _ := Plan(mode, "n0000", nodes, Options{})
				if d, err := Apply(b.Context(), tab, state); err != nil || i > 0 && len(d.Replace)+len(d.SetPeers) != 1 {
					b.Fatalf("%+v, %v", d, err)
				}
			}
		})
	}
}
