package routes

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/vxlan"
)

// cluster returns three Nodes of a cluster, the first of which is "self", and more; each is younger than the previous
// one.
func cluster(more ...*v1.Node) []*v1.Node {
	all := append([]*v1.Node{node("self", "10.1.0.11", "10.244.0.0/24"), node("b", "10.1.0.12", "10.244.1.0/24"), node("c", "10.1.0.13", "10.244.2.0/24")}, more...)
	for i, n := range all {
		younger(n, time.Duration(i)*time.Hour)
	}
	return all
}

// TestBelieve: what a Node claims although it belongs to another is refused with the message of its Event, and all
// other Nodes keep their routes.
func TestBelieve(t *testing.T) {
	known := Known{Services: []netip.Prefix{pfx("10.96.0.0/12"), pfx("10.244.9.0/28")}, APIServers: []netip.Addr{netip.MustParseAddr("10.244.8.10"), netip.MustParseAddr("10.1.0.10")},
		Networks: []netip.Prefix{pfx("10.1.0.11/24"), pfx("10.244.0.1/24"), pfx("172.17.0.1/16"), pfx("10.244.16.1/20")}}
	given := known
	given.ClusterCIDRs = []netip.Prefix{pfx("10.244.0.0/16"), pfx("fd00:244::/48")}
	plane := node("plane", "10.1.0.10", "10.244.6.0/24")
	plane.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	var b strings.Builder
	for _, c := range []struct {
		name  string
		nodes []*v1.Node
	}{
		{"an honest newcomer", cluster(node("new", "10.1.0.19", "10.244.7.0/24"))},
		{"the service range", cluster(node("liar", "10.1.0.19", "10.96.0.0/24"))},
		{"a piece of a service range among the pods", cluster(node("liar", "10.1.0.19", "10.244.9.0/24"))},
		{"the API server", cluster(node("liar", "10.1.0.19", "10.244.8.0/24"))},
		{"a third host", cluster(node("liar", "10.1.0.19", "10.1.0.77/32"))},
		{"a single address among the pods", cluster(node("liar", "10.1.0.19", "10.244.7.7/32"))},
		{"this host's network", cluster(node("liar", "10.1.0.19", "10.1.0.0/24"))},
		{"half of this host's network", cluster(node("liar", "10.1.0.19", "10.1.0.128/25"))},
		{"a piece of another network of this host", cluster(node("liar", "10.1.0.19", "10.244.17.0/24"))},
		{"the world", cluster(node("liar", "10.1.0.19", "0.0.0.0/0"))},
		{"half of the cluster", cluster(node("liar", "10.1.0.19", "10.244.128.0/17"))},
		{"far away", cluster(node("liar", "10.1.0.19", "172.30.5.0/24"))},
		{"an older one's range", cluster(node("liar", "10.1.0.19", "10.244.1.0/24"))},
		{"addresses of Nodes elsewhere", cluster(node("d", "10.244.5.1", "10.244.3.0/24"), node("e", "10.244.5.2", "10.244.4.0/24"), node("liar", "10.1.0.19", "10.244.5.0/24"))},
		{"this host's address", cluster(node("liar", "10.1.0.11", "10.244.7.0/24"))},
		{"another Node's address", cluster(node("liar", "10.1.0.12", "10.244.7.0/24"))},
		{"an address in another Node's range", cluster(node("liar", "10.244.1.9", "10.244.7.0/24"))},
		{"the API server's address", cluster(plane, node("liar", "10.1.0.10", "10.244.7.0/24"))},
		{"another length, by three", cluster(node("d", "10.1.0.14", "10.244.64.0/26"), node("e", "10.1.0.15", "10.244.64.64/26"), node("f", "10.1.0.16", "10.244.64.128/26"))},
		{"far away, by three", cluster(node("d", "10.1.0.14", "172.30.1.0/24"), node("e", "10.1.0.15", "172.30.2.0/24"), node("f", "10.1.0.16", "172.30.9.0/24"))},
		{"the second family alone", cluster(node("liar", "10.1.0.19", "fd00:1::19", "10.244.7.0/24", "2001:db8::1/128"), node("d", "10.1.0.14", "fd00:1::14", "10.244.3.0/24", "fd00:244::/64"),
			node("e", "10.1.0.15", "fd00:1::15", "10.244.4.0/24", "fd00:244:0:1::/64"))},
	} {
		fmt.Fprintf(&b, "## %s\n%s", c.name, printed(Plan(HostGateway, "self", c.nodes, Options{Known: known})))
		if learnt, told := printed(Plan(HostGateway, "self", c.nodes, Options{Known: known})), printed(Plan(HostGateway, "self", c.nodes, Options{Known: given})); learnt != told {
			fmt.Fprintf(&b, "# with --cluster-cidr\n%s", told)
		}
	}
	golden(t, "believe", b.String())
}

// survivors returns n of the Nodes that a block of so many ranges was ever assigned to, with both families.
func survivors(rng *rand.Rand, base uint32, size, n int) []*v1.Node {
	var all []*v1.Node
	for i, at := range rng.Perm(size)[:n] {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], base+uint32(at)<<8)
		four := netip.PrefixFrom(netip.AddrFrom4(b), 24)
		six := fmt.Sprintf("fd00:244:0:%x::/64", at)
		all = append(all, younger(node(fmt.Sprintf("n%d", i), fmt.Sprintf("172.16.%d.%d", i/250, i%250+1), fmt.Sprintf("fd00:1::%x", i+1), four.String(), six), time.Duration(rng.IntN(9))*time.Hour))
	}
	return all
}

// TestHonestClusters: in a block of up to 4,096 ranges nothing is ever refused, whichever Nodes are left and in
// whichever order they come. One Node whose range is further away changes nothing for the others and gets nothing,
// unless it is the oldest.
func TestHonestClusters(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		size := 1 << (1 + rng.IntN(12))
		base := 10<<24 | rng.Uint32N(1<<24)&^uint32(size<<8-1)
		nodes := survivors(rng, base, size, 2+rng.IntN(min(size-1, 40)))
		self := fmt.Sprintf("n%d", rng.IntN(len(nodes)+1)) // or none
		want := 2 * len(nodes)
		if slices.ContainsFunc(nodes, func(n *v1.Node) bool { return n.Name == self }) {
			want -= 2
		}
		honest, problems := Plan(HostGateway, self, nodes, Options{})
		if len(honest.Routes) != want || len(problems) > 0 {
			t.Fatalf("round %d, %d Nodes of %d: %s", round, len(nodes), size, printed(honest, problems))
		}
		liar := younger(node("liar", "172.16.99.1", "172.31.7.0/24"), 10*time.Hour)
		state, problems := Plan(HostGateway, self, append(slices.Clone(nodes), liar), Options{})
		if !reflect.DeepEqual(state, honest) || len(problems) != 1 || problems[0].Node != "liar" || problems[0].Reason != PodCIDRRefused {
			t.Fatalf("round %d: with a liar: %s", round, printed(state, problems))
		}
	}
}

// TestLongCluster: more than 4,096 ranges are one cluster if each new one is near an earlier one.
func TestLongCluster(t *testing.T) {
	var nodes []*v1.Node
	for i := range 20 {
		at := i * 3000
		nodes = append(nodes, younger(node(fmt.Sprintf("n%02d", i), fmt.Sprintf("172.16.0.%d", i+1), fmt.Sprintf("10.%d.%d.0/24", at/256, at%256)), time.Duration(i)*time.Hour))
	}
	for _, self := range []string{"n00", "n07", "n19", "none"} {
		state, problems := Plan(HostGateway, self, nodes, Options{})
		if len(problems) > 0 || len(state.Routes) < 19 {
			t.Errorf("%s: %s", self, printed(state, problems))
		}
	}
}

// TestKeepsWhatItHad: an older Node that writes a younger one's address into its own status takes nothing from it, in
// either mode. Nor does one that copies the hardware address of its tunnel.
func TestKeepsWhatItHad(t *testing.T) {
	random := vxlan.MAC{2, 0x15, 0x5d, 1, 2, 3} // as HNS of Windows chooses them
	for _, mode := range []Mode{HostGateway, Overlay} {
		nodes := cluster(node("victim", "10.1.0.19", "10.244.7.0/24"))
		announce(nodes...)
		nodes[3].Annotations["flannel.alpha.coreos.com/backend-data"] = fmt.Sprintf(`{"VNI":4096,"VtepMAC":"%s"}`, random)
		honest, problems := Plan(mode, "self", nodes, Options{})
		if len(honest.Routes) != 3 || len(problems) > 0 {
			t.Fatalf("%s: %s", mode, printed(honest, problems))
		}
		lies := cluster(node("victim", "10.1.0.19", "10.244.7.0/24"))
		lies[1] = younger(node("b", "10.1.0.19", "10.244.1.0/24"), time.Hour)
		announce(lies...)
		lies[1].Annotations["flannel.alpha.coreos.com/backend-data"] = nodes[3].Annotations["flannel.alpha.coreos.com/backend-data"]
		lies[3].Annotations = nodes[3].Annotations
		state, problems := Plan(mode, "self", lies, Options{Known: Known{Before: honest}})
		of := func(r Route) bool { return r.Node == "victim" }
		if !slices.ContainsFunc(state.Routes, of) || slices.ContainsFunc(state.Routes, func(r Route) bool { return r.Node == "b" }) || len(problems) == 0 ||
			slices.ContainsFunc(problems, func(p Problem) bool { return p.Node != "b" }) {
			t.Errorf("%s: with a liar: %s", mode, printed(state, problems))
		}
		// The proxy starts while b lies: the victim has its route, whatever is known.
		if state, problems := Plan(mode, "self", lies, Options{}); mode == HostGateway && (!slices.ContainsFunc(state.Routes, of) || len(problems) != 1) {
			t.Errorf("%s: at the start: %s", mode, printed(state, problems))
		}
	}
}

// TestMadeForItsRange: a hardware address that is derived from a Node's range belongs to that Node, even if an unknown
// older one reports it too.
func TestMadeForItsRange(t *testing.T) {
	nodes := announce(cluster()...)
	nodes[1].Annotations["flannel.alpha.coreos.com/backend-data"] = nodes[2].Annotations["flannel.alpha.coreos.com/backend-data"]
	state, problems := Plan(Overlay, "self", nodes, Options{})
	if len(state.Peers) != 1 || state.Peers[0].Node != "c" || len(problems) != 1 || problems[0].Node != "b" || !strings.Contains(problems[0].Message, "from whose pod CIDR it is made") {
		t.Errorf("%s", printed(state, problems))
	}
	nodes[2].Annotations["flannel.alpha.coreos.com/backend-data"] = nodes[0].Annotations["flannel.alpha.coreos.com/backend-data"]
	if state, problems := Plan(Overlay, "self", nodes, Options{}); len(state.Peers) != 1 || state.Peers[0].Node != "b" || len(problems) != 1 || problems[0].Node != "c" {
		t.Errorf("this node's own: %s", printed(state, problems))
	}
}

// FuzzBelieve: whatever Nodes claim, no route takes a service range, an address of the API server, of this host or of
// its networks, or an older Node's range; and the order of the Nodes does not matter.
func FuzzBelieve(f *testing.F) {
	f.Add([]byte{10, 244, 1, 0, 24, 12, 0, 10, 96, 0, 0, 24, 13, 1, 10, 1, 0, 0, 25, 14, 2}, uint8(0))
	f.Add([]byte{10, 244, 1, 0, 24, 12, 0, 10, 244, 1, 0, 24, 12, 1, 10, 244, 0, 0, 16, 10, 2}, uint8(1))
	f.Add([]byte{10, 1, 0, 77, 32, 11, 9, 0, 0, 0, 0, 0, 12, 3, 172, 17, 3, 0, 24, 12, 1}, uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, kind uint8) {
		known := Known{Services: []netip.Prefix{pfx("10.96.0.0/12")}, APIServers: []netip.Addr{netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("10.244.200.1")},
			Networks: []netip.Prefix{pfx("10.1.0.11/24"), pfx("172.17.0.1/16")}}
		if kind&1 != 0 {
			known.ClusterCIDRs = []netip.Prefix{pfx("10.0.0.0/8")}
		}
		mode := HostGateway
		if kind&2 != 0 {
			mode = Overlay
		}
		nodes := []*v1.Node{younger(node("self", "10.1.0.11", "10.244.0.0/24"), 100*time.Second)}
		for i := 0; i+7 <= len(data) && i < 7*40; i += 7 {
			dst := netip.PrefixFrom(netip.AddrFrom4([4]byte(data[i:i+4])), int(data[i+4])%33)
			nodes = append(nodes, younger(node(fmt.Sprintf("n%d", i/7), fmt.Sprintf("10.1.0.%d", data[i+5]), dst.String()), time.Duration(data[i+6])*time.Second))
		}
		announce(nodes...)
		state, problems := Plan(mode, "self", nodes, Options{Known: known})
		shuffled := slices.Clone(nodes)
		slices.Reverse(shuffled)
		if again, problemsAgain := Plan(mode, "self", shuffled, Options{Known: known}); !reflect.DeepEqual(state, again) || !reflect.DeepEqual(problems, problemsAgain) {
			t.Fatalf("order matters:\n%s\n%s", printed(state, problems), printed(again, problemsAgain))
		}
		for i, r := range state.Routes {
			for _, s := range known.Services {
				if s.Overlaps(r.Dst) {
					t.Fatalf("%s takes service addresses", r)
				}
			}
			if slices.ContainsFunc(known.APIServers, r.Dst.Contains) {
				t.Fatalf("%s takes the API server", r)
			}
			for _, n := range known.Networks {
				if n.Overlaps(r.Dst) && n.Masked() != r.Dst || r.Dst.Contains(n.Addr()) && n == known.Networks[0] || r.Peer == n.Addr() {
					t.Fatalf("%s takes of this host's %s", r, n)
				}
			}
			if r.Dst.Overlaps(pfx("10.244.0.0/24")) || len(known.ClusterCIDRs) > 0 && !known.ClusterCIDRs[0].Overlaps(r.Dst) || r.Dst.IsSingleIP() {
				t.Fatalf("%s is not believable", r)
			}
			for _, other := range state.Routes[:i] {
				if other.Dst.Overlaps(r.Dst) {
					t.Fatalf("%s and %s overlap", other, r)
				}
			}
		}
	})
}
