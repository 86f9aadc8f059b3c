package routes

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

// node returns a Node; "192.168.1.0/24" is a pod CIDR, "10.1.0.12" an InternalIP. Nodes created later are younger.
func node(name string, parts ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	for _, p := range parts {
		if strings.Contains(p, "/") {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p)
			n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		} else {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: p})
		}
	}
	return n
}

func younger(n *v1.Node, by time.Duration) *v1.Node {
	n.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(by))
	return n
}

// seeds returns the example of the Windows pages: one Linux and two Windows hosts in the cluster CIDR 192.168.0.0/16.
func seeds() []*v1.Node {
	return []*v1.Node{
		node("Lin01", "10.1.0.11", "192.168.0.0/24"),
		node("Win01", "10.1.0.12", "192.168.1.0/24"),
		node("Win02", "10.1.0.13", "192.168.2.0/24"),
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.ReplaceAll(string(want), "\r\n", "\n"); got != w {
		t.Errorf("%s differs (run with -update to accept):\n--- got\n%s--- want\n%s", path, got, w)
	}
}

func printed(state State, problems []Problem) string {
	s := state.String()
	for _, p := range problems {
		s += "problem: " + p.String() + "\n"
	}
	return s
}

func TestPlanSeeds(t *testing.T) {
	var b strings.Builder
	for _, hop := range []NextHop{NodeIP, PodGateway} {
		for _, self := range []string{"Lin01", "Win01", "Win02", "control-plane"} {
			fmt.Fprintf(&b, "## %s, next hop %s\n%s", self, hop, printed(Plan(HostGateway, self, seeds(), Options{NextHop: hop})))
		}
	}
	fmt.Fprintf(&b, "## Lin01, mode upstream\n%s", printed(Plan(Upstream, "Lin01", seeds(), Options{})))
	golden(t, "seeds", b.String())
}

func TestPlanProblems(t *testing.T) {
	six := "fd00:1::11"
	// The cluster's ranges are known, so that the Nodes' ranges are checked only against each other.
	opts := Options{Known: Known{ClusterCIDRs: []netip.Prefix{pfx("10.0.0.0/8"), pfx("fd00:244::/32")}}}
	for _, c := range []struct {
		name  string
		nodes []*v1.Node
	}{
		{"no pod CIDR", []*v1.Node{node("other", "10.1.0.12")}},
		{"no address", []*v1.Node{node("other", "10.244.1.0/24")}},
		{"family mismatch", []*v1.Node{node("other", "10.1.0.12", "10.244.1.0/24", "fd00:244:1::/64")}},
		{"dual stack", []*v1.Node{node("self", "10.1.0.11", six, "10.244.0.0/24"), node("other", "fd00:1::12", "10.1.0.12", "10.244.1.0/24", "fd00:244:1::/64")}},
		{"unreadable", []*v1.Node{node("other", "10.1.0.12", "10.244.1/24", "10.244.2.0/24")}},
		{"host bits", []*v1.Node{node("other", "10.1.0.12", "10.244.1.7/24")}},
		{"old field only", []*v1.Node{func() *v1.Node {
			n := node("other", "10.1.0.12")
			n.Spec.PodCIDR = "10.244.9.0/24"
			return n
		}()}},
		{"same CIDR twice", []*v1.Node{younger(node("a", "10.1.0.12", "10.244.1.0/24"), time.Hour), younger(node("b", "10.1.0.13", "10.244.1.0/24"), 0)}},
		{"inside an older one", []*v1.Node{younger(node("a", "10.1.0.12", "10.244.1.0/24"), time.Hour), younger(node("b", "10.1.0.13", "10.244.0.0/16"), 0)}},
		{"around an older one", []*v1.Node{younger(node("a", "10.1.0.12", "10.244.0.0/16"), time.Hour), younger(node("b", "10.1.0.13", "10.244.1.0/24"), 0)}},
		{"overlaps with own", []*v1.Node{younger(node("self", "10.1.0.11", "10.244.1.0/24"), time.Hour), younger(node("b", "10.1.0.13", "10.244.0.0/16"), 0)}},
		{"overlaps with itself", []*v1.Node{node("b", "10.1.0.13", "10.244.1.0/24", "10.244.1.128/25")}},
		{"holds its own address", []*v1.Node{node("b", "10.1.0.13", "10.1.0.0/24")}},
		{"holds our address", []*v1.Node{node("self", "10.9.0.11"), node("b", "10.1.0.13", "10.9.0.0/24")}},
		{"default route", []*v1.Node{node("b", "10.1.0.13", "0.0.0.0/0")}},
		{"self without CIDR is not our problem", []*v1.Node{node("self", "10.1.0.11")}},
		{"hostname as address", []*v1.Node{node("b", "not-an-ip", "10.1.0.13", "10.244.1.0/24")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			golden(t, "problem-"+strings.ReplaceAll(c.name, " ", "-"), printed(Plan(HostGateway, "self", c.nodes, opts)))
		})
	}
}

// TestPlanOrder: a plan does not depend on the order of the nodes, and its routes never overlap.
func TestPlanOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var nodes []*v1.Node
		for i := range 12 {
			n := node(fmt.Sprintf("n%d", i), fmt.Sprintf("172.16.0.%d", i+1), fmt.Sprintf("10.0.%d.0/%d", rng.IntN(8), 20+rng.IntN(6)))
			nodes = append(nodes, younger(n, time.Duration(rng.IntN(3))*time.Hour))
		}
		self := fmt.Sprintf("n%d", rng.IntN(13))
		state, problems := Plan(HostGateway, self, nodes, Options{})
		rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		again, problemsAgain := Plan(HostGateway, self, nodes, Options{})
		if !reflect.DeepEqual(state, again) || !reflect.DeepEqual(problems, problemsAgain) {
			t.Fatalf("round %d: order matters:\n%s\n%s", round, printed(state, problems), printed(again, problemsAgain))
		}
		for i, a := range state.Routes {
			for _, b := range state.Routes[:i] {
				if a.Dst.Overlaps(b.Dst) {
					t.Fatalf("round %d: %s overlaps %s", round, a, b)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, s := range []string{"host-gateway", "upstream", "overlay", "external"} {
		if m, err := ParseMode(s); err != nil || string(m) != s {
			t.Errorf("%q: %q, %v", s, m, err)
		}
	}
	if _, err := ParseMode("underlay"); err == nil || !strings.Contains(err.Error(), `"underlay"`) || !strings.Contains(err.Error(), "want host-gateway") {
		t.Errorf("%v", err)
	}
}

func FuzzPlanCIDR(f *testing.F) {
	f.Add("10.244.1.0/24", "10.1.0.1")
	f.Add("::ffff:10.0.0.0/104", "::ffff:10.1.0.1")
	f.Add("fe80::%eth0/64", "fe80::1%eth0")
	f.Fuzz(func(t *testing.T, cidr, addr string) {
		n := node("other")
		n.Spec.PodCIDRs = []string{cidr}
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: addr}}
		state, problems := Plan(HostGateway, "self", []*v1.Node{n}, Options{NextHop: PodGateway})
		if len(state.Routes)+len(problems) != 1 {
			t.Fatalf("%q %q: %s", cidr, addr, printed(state, problems))
		}
		for _, r := range state.Routes {
			if r.Dst != r.Dst.Masked() || r.Dst.Contains(r.Peer) || r.Peer.Is4() != r.Dst.Addr().Is4() {
				t.Fatalf("%q %q: bad route %s", cidr, addr, r)
			}
		}
	})
}

func thousand() []*v1.Node {
	var nodes []*v1.Node
	for i := range 1000 {
		nodes = append(nodes, node(fmt.Sprintf("n%04d", i), fmt.Sprintf("172.16.%d.%d", i/250, i%250+1), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)))
	}
	return nodes
}

func BenchmarkPlan1000(b *testing.B) {
	nodes := thousand()
	for b.Loop() {
		if s, _ := Plan(HostGateway, "n0000", nodes, Options{}); len(s.Routes) != 999 {
			b.Fatal(len(s.Routes))
		}
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func BenchmarkPlanOverlay1000(b *testing.B) {
	nodes := announce(thousand()...)
	for b.Loop() {
		if s, _ := Plan(Overlay, "n0000", nodes, Options{}); len(s.Routes) != 999 {
			b.Fatal(len(s.Routes))
		}
	}
}
