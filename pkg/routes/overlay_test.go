package routes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/vxlan"
)

// announce adds the annotations that the nodes' kubelets would write.
func announce(nodes ...*v1.Node) []*v1.Node {
	for _, n := range nodes {
		var devices []vxlan.Device
		for _, cidr := range n.Spec.PodCIDRs {
			p := pfx(cidr)
			if local, ok := ofFamily(internalIPs(nil, n), p.Addr()); ok {
				devices = append(devices, vxlan.NewDevice(p, local, 1500))
			}
		}
		n.Annotations = vxlan.Annotations(devices, nil)
	}
	return nodes
}

func TestPlanOverlay(t *testing.T) {
	var b strings.Builder
	nodes := announce(seeds()...)
	for _, self := range []string{"Lin01", "Win01", "control-plane"} {
		fmt.Fprintf(&b, "## %s\n%s", self, printed(Plan(Overlay, self, nodes, Options{})))
	}
	dual := announce(node("self", "10.1.0.11", "fd00:1::11", "10.244.0.0/24", "fd00:244::/64"),
		node("other", "10.1.0.12", "fd00:1::12", "10.244.1.0/24", "fd00:244:0:1::/64"))
	fmt.Fprintf(&b, "## dual stack\n%s", printed(Plan(Overlay, "self", dual, Options{})))
	fmt.Fprintf(&b, "## dual stack, seen from Windows\n%s", printed(Plan(Overlay, "self", dual, Options{Tunnel4: true})))

	silent := node("silent", "10.1.0.14", "192.168.4.0/24")
	flannel := announce(younger(node("flannel", "10.1.0.15", "192.168.5.0/24"), time.Hour))[0]
	flannel.Annotations["flannel.alpha.coreos.com/backend-data"] = `{"VNI":1,"VtepMAC":"5e:11:22:33:44:55"}`
	double := announce(younger(node("double", "10.1.0.16", "192.168.6.0/24"), 2*time.Hour))[0]
	double.Annotations["flannel.alpha.coreos.com/backend-data"] = nodes[1].Annotations["flannel.alpha.coreos.com/backend-data"]
	inside := announce(node("inside", "192.168.7.5", "192.168.7.0/24"))[0]
	fmt.Fprintf(&b, "## problems\n%s", printed(Plan(Overlay, "Lin01", append(nodes, silent, flannel, double, inside), Options{})))
	golden(t, "overlay", b.String())
}

func TestComparePeers(t *testing.T) {
	state, _ := Plan(Overlay, "Lin01", announce(seeds()...), Options{})
	one, two := state.Peers[0], state.Peers[1]
	bare := func(p Peer) Peer { p.Node = ""; return p }
	with := func(p Peer, change func(*Peer)) Peer { p = bare(p); change(&p); return p }
	other := vxlan.MAC{2, 2, 2, 2, 2, 2}
	for name, c := range map[string]struct {
		have        []Peer
		remove, set string
	}{
		"right":                 {[]Peer{bare(one), bare(two)}, "", ""},
		"nothing there":         {nil, "", "Win01 Win02"},
		"forwarding entry gone": {[]Peer{bare(one), with(two, func(p *Peer) { p.Public = netip.Addr{} })}, "", "Win02"},
		"neighbour entry gone":  {[]Peer{bare(one), with(two, func(p *Peer) { p.Inner = netip.Addr{} })}, "", "Win02"},
		"node moved":            {[]Peer{bare(one), with(two, func(p *Peer) { p.Public = netip.MustParseAddr("10.1.0.99") })}, "", "Win02"},
		"other hardware":        {[]Peer{bare(one), with(two, func(p *Peer) { p.MAC = other })}, "invalid IP 02:02:02:02:02:02 10.1.0.13", "Win02"},
		"node gone": {[]Peer{bare(one), bare(two), {one.Device, netip.MustParseAddr("192.168.9.0"), other, netip.MustParseAddr("10.1.0.19"), ""}},
			"192.168.9.0 02:02:02:02:02:02 10.1.0.19", ""},
		"range changed": {[]Peer{bare(one), with(two, func(p *Peer) { p.Inner = netip.MustParseAddr("192.168.9.0") })},
			"192.168.9.0 " + two.MAC.String() + " invalid IP", "Win02"},
	} {
		remove, set := comparePeers(c.have, state.Peers)
		var removed, nodes []string
		for _, p := range remove {
			removed = append(removed, fmt.Sprintf("%s %s %s", p.Inner, p.MAC, p.Public))
		}
		for _, p := range set {
			nodes = append(nodes, p.Node)
		}
		if got := strings.Join(removed, ", "); got != c.remove {
			t.Errorf("%s: removes %q, want %q", name, got, c.remove)
		}
		if got := strings.Join(nodes, " "); got != c.set {
			t.Errorf("%s: sets %q, want %q", name, got, c.set)
		}
	}
}
