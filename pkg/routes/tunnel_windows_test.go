package routes

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// TestTunnel: HNS has the routes to other nodes as soon as it has the network, each change of a node changes only its
// entry, and nothing of ours is left. The simulated host's address is 192.168.1.3.
func TestTunnel(t *testing.T) {
	needIPHelper(t)
	if _, err := hns.NewClient().Endpoints(t.Context()); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	table, err := NewRoutingTable()
	if err != nil {
		t.Fatal(err)
	}
	hints, err := table.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes := announce(seeds()...)
	plan := func() State {
		state, problems := Plan(Overlay, "Win01", nodes, Options{Tunnel4: true})
		if len(state.Routes) != 2 || len(problems) > 0 {
			t.Fatal(printed(state, problems))
		}
		return state
	}
	if _, err := Apply(t.Context(), table, plan()); err == nil || !strings.Contains(err.Error(), "cannot find the overlay network") {
		t.Errorf("before the kubelet made the network: %v", err)
	}
	o := hns.Overlay{Name: vxlan.DeviceName(true), Subnet: netip.MustParsePrefix("192.168.1.0/24"), Gateway: netip.MustParseAddr("192.168.1.1"),
		VNI: vxlan.VNI, Provider: netip.MustParseAddr("192.168.1.3")}
	if _, err := hns.MakeOverlay(o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hns.RemoveOverlay(o.Name); err != nil {
			t.Error(err)
		}
	}()
	<-hints // for the new network
	check := func(what string, want State, changes int) {
		t.Helper()
		d, err := Apply(t.Context(), table, want)
		if err != nil || len(d.SetPeers)+len(d.RemovePeers) != changes {
			t.Errorf("%s: %+v, %v, want %d changes", what, d, err, changes)
		}
		if again, err := Apply(t.Context(), table, want); err != nil || !again.Empty() {
			t.Errorf("%s, again: %+v, %v", what, again, err)
		}
		if got, err := hns.RemoteSubnets(o.Name); err != nil || !same(got, wanted(want)) {
			t.Errorf("%s: HNS has %v, %v, want %v", what, got, err, wanted(want))
		}
	}
	check("two nodes", plan(), 2)
	nodes[2].Annotations = vxlan.Annotations([]vxlan.Device{vxlan.NewDevice(pfx("192.168.2.0/24"), netip.MustParseAddr("10.1.0.99"), 1500)}, nil)
	check("one has another address", plan(), 1)
	foreign := slices.Clone(wanted(plan())[:1])
	if err := hns.ChangeSubnets(o.Name, vxlan.VNI, foreign, nil); err != nil {
		t.Fatal(err)
	}
	check("one was taken away", plan(), 1)
	check("nothing is wanted", State{}, 2)
}
