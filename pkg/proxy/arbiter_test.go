package proxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conflicts returns a random world with everything that decides who gets a front.
func conflicts(seed uint64, events int) (*world, *Tracker) {
	w := newWorld(seed)
	tracker := NewTracker(w.node, Holders{Ports: []ReservedPort{{30001, v1.ProtocolTCP, "the test"}, {32001, v1.ProtocolTCP, "the test"}, {1, v1.ProtocolUDP, "the test"}},
		NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.8/30")}})
	for range events {
		if w.event(tracker); w.maybe(3) {
			tracker.Update()
		}
	}
	tracker.Update()
	return w, tracker
}

// FuzzClaims: whatever Services claim, fronts are unique, a cluster IP belongs to its Service, reserved addresses and
// ports go to no Service, a loser has a Problem in the field of its claim, and the order of arguments does not matter.
func FuzzClaims(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint16(20*seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, events uint16) {
		w, tracker := conflicts(seed, int(events%600))
		services, list := slices.Collect(maps.Values(w.services)), slices.Collect(maps.Values(w.slices))
		holders := tracker.Holders()
		table, problems := BuildWithProblems(services, list, w.node, holders)
		checkClaims(t, services, table, problems, w.node)
		checkReserved(t, table, tracker, holders)
		if got := tracker.Table().String(); got != table.String() {
			t.Fatalf("the Tracker has\n%s\nBuild makes\n%s\nof\n%s", got, table, &holders)
		}
		rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		rand.Shuffle(len(holders.Nodes), func(i, j int) { holders.Nodes[i], holders.Nodes[j] = holders.Nodes[j], holders.Nodes[i] })
		if got, want := text(BuildWithProblems(services, list, w.node, holders)), text(table, problems); got != want {
			t.Fatalf("another order gives\n%s\nwas\n%s", got, want)
		}
	})
}

func checkClaims(t *testing.T, services []*v1.Service, table *Table, problems []Problem, node NodeInfo) {
	t.Helper()
	fronts := map[FrontKey]Route{}
	listening := table.Routes
	for _, h := range table.HealthChecks {
		for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			listening = append(listening, Route{Service: ServicePortName{ServiceName: h.Service}, Kind: NodePort, Protocol: v1.ProtocolTCP, Front: netip.AddrPortFrom(all, h.Port)})
		}
	}
	for _, r := range listening {
		if other, is := fronts[r.Key()]; is {
			t.Errorf("%s is a front of %s and of %s", r.Key(), other.Service, r.Service)
		}
		fronts[r.Key()] = r
	}
	byKey := map[FrontKey]*v1.Service{} // the owner of a cluster IP and port: the oldest
	for _, s := range services {
		name := ServiceName{Namespace: s.Namespace, Name: s.Name}
		for _, a := range buildService(s, nil, node).claims {
			if r, is := fronts[a.front]; !is || r.Service.ServiceName != name {
				if !slices.ContainsFunc(problems, func(p Problem) bool { return p.Service == name && p.Field == a.field() && p.Reason != Invalid }) {
					t.Errorf("%s does not have %s of %s and is not told", name, a.front, a.field())
				}
			}
			o := byKey[a.front]
			if a.kind() == ClusterIP && (o == nil || older(&entry{name: name, created: s.CreationTimestamp.Unix()},
				&entry{name: ServiceName{Namespace: o.Namespace, Name: o.Name}, created: o.CreationTimestamp.Unix()}) < 0) {
				byKey[a.front] = s
			}
		}
	}
	for key, s := range byKey {
		if r := fronts[key]; r.Kind != ClusterIP || r.Service.Namespace != s.Namespace || r.Service.Name != s.Name {
			t.Errorf("%s is the cluster IP of %s/%s, but %s %s has it", key, s.Namespace, s.Name, r.Kind, r.Service)
		}
	}
}

func checkReserved(t *testing.T, table *Table, tracker *Tracker, h Holders) {
	t.Helper()
	servers := tracker.arbiter.others.servers
	reserved := func(port uint16, protocol v1.Protocol) bool {
		return tracker.arbiter.others.nodes["n1"].KubeletPort == port && protocol == v1.ProtocolTCP ||
			slices.ContainsFunc(servers, func(s netip.AddrPort) bool {
				return s.Port() == port && protocol == v1.ProtocolTCP && tracker.arbiter.others.own[s.Addr()]
			}) ||
			slices.ContainsFunc(slices.Concat(ReservedPorts, h.Ports), func(p ReservedPort) bool { return p.Port == port && p.Protocol == protocol })
	}
	for _, check := range table.HealthChecks {
		if reserved(check.Port, v1.ProtocolTCP) {
			t.Errorf("%s has the health check node port %d, which is reserved\n%s", check.Service, check.Port, &h)
		}
	}
	cluster := map[netip.Addr]bool{}
	for _, r := range table.Routes {
		cluster[r.Front.Addr()] = cluster[r.Front.Addr()] || r.Kind == ClusterIP
	}
	for _, r := range table.Routes {
		addr := r.Front.Addr()
		if r.Kind == NodePort && reserved(r.Front.Port(), r.Protocol) {
			t.Errorf("%s has node port %s, which is reserved\n%s", r.Service, r.Key(), &h)
		}
		if r.Kind == ClusterIP || r.Kind == NodePort {
			continue
		}
		own, in := tracker.arbiter.others.own[addr], func(p netip.Prefix) bool { return p.Contains(addr) }
		server := slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return s.Addr() == addr })
		inPods := slices.ContainsFunc(h.Nodes, func(n NodeHolding) bool {
			return (n.Name == "n1" || !own && r.Kind == ExternalIP) && slices.ContainsFunc(n.PodRanges, func(p netip.Prefix) bool { return in(p) && !tooWide(p) })
		})
		if cluster[addr] || slices.ContainsFunc(h.ServiceRanges, in) || !own && (server || slices.Contains(h.Host.NextHops, addr)) ||
			own && reserved(r.Front.Port(), r.Protocol) || inPods {
			t.Errorf("%s has %s, which is another's\n%s", r.Service, r.Key(), &h)
		}
	}
}

// TestFirst: an address that a Service uses and another Node claims goes to whoever was first; at start, to the older.
func TestFirst(t *testing.T) {
	const addr = "203.0.113.9"
	node := func(created int64, addresses ...string) *NodeHolding {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", CreationTimestamp: metav1.Unix(created, 0)}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
		}
		holding := NodeHoldingOf(n)
		return &holding
	}
	service := func(created int64, kind Kind) *v1.Service {
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", CreationTimestamp: metav1.Unix(created, 0)},
			Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []v1.ServicePort{{Port: 80}}}}
		switch kind {
		case ExternalIP:
			s.Spec.ExternalIPs = []string{addr}
		case LoadBalancer:
			s.Spec.Type, s.Status.LoadBalancer.Ingress = v1.ServiceTypeLoadBalancer, []v1.LoadBalancerIngress{{IP: addr}}
		}
		return s
	}
	const here, there = true, false
	type step struct {
		what    string
		service *v1.Service
		node    *NodeHolding
		want    bool // the Service is served at it here
		accused bool
	}
	far, liar := node(5, "10.1.0.12"), node(5, "10.1.0.12", addr)
	for name, steps := range map[string][]step{
		"at start, the Service is older":           {{"", service(4, ExternalIP), liar, here, true}},
		"at start, the Node is older":              {{"", service(6, ExternalIP), liar, there, false}},
		"at start, a load balancer's":              {{"", service(6, LoadBalancer), liar, here, true}},
		"at start, klipper":                        {{"", service(4, LoadBalancer), node(5, addr), there, false}},
		"at start, the Node is older, then leaves": {{"", service(6, ExternalIP), liar, there, false}, {"leaves", nil, far, here, false}, {"returns", nil, liar, there, false}},
		"a lie, and again": {{"", service(9, ExternalIP), far, here, false}, {"lies", nil, liar, here, true}, {"stops", nil, far, here, false},
			{"lies again", nil, liar, here, true}},
		"a lie about a load balancer": {{"", service(9, LoadBalancer), far, here, false}, {"lies", nil, node(5, addr), here, true}},
		"the Service lets go, and asks again": {{"", service(9, ExternalIP), far, here, false}, {"lies", nil, liar, here, true},
			{"lets go", service(9, ClusterIP), nil, there, false}, {"asks again", service(9, ExternalIP), nil, there, false}},
		"asks while the Node has it": {{"", service(1, ClusterIP), liar, there, false}, {"asks", service(1, ExternalIP), nil, there, false},
			{"the Node is gone", nil, &NodeHolding{}, here, false}, {"the Node is back", nil, liar, there, false}},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(NodeInfo{Name: "n1"}, Holders{})
			for _, s := range steps {
				switch {
				case s.node != nil && s.node.Name == "":
					tracker.SetNodeHolding("n2", nil)
				case s.node != nil:
					tracker.SetNodeHolding("n2", s.node)
				}
				if s.service != nil {
					tracker.SetService(s.service)
				}
				tracker.Update()
				has := slices.ContainsFunc(tracker.Table().Routes, func(r Route) bool { return r.Front.Addr() == netip.MustParseAddr(addr) })
				if has != s.want {
					t.Errorf("%q: the Service has its address: %v, want %v\n%s", s.what, has, s.want, tracker.Table())
				}
				if text := tracker.Disbelieved("n2"); (text != "") != s.accused || s.accused && !strings.Contains(text, addr+" is an address of Service a/web") {
					t.Errorf("%q: the Node is told %q", s.what, text)
				}
			}
		})
	}
}

// TestManyAddresses: of a Node that claims thousands of addresses, only a few count, and it gets an Event.
func TestManyAddresses(t *testing.T) {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	for i := range 5000 {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeExternalIP, Address: fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)})
	}
	tracker := NewTracker(NodeInfo{Name: "n1"}, Holders{})
	holding := NodeHoldingOf(n)
	tracker.SetNodeHolding("n2", &holding)
	tracker.Update()
	if got := len(tracker.arbiter.others.nodesAt); got != maxNodeAddresses {
		t.Errorf("%d addresses are kept, want %d", got, maxNodeAddresses)
	}
	if text := tracker.Disbelieved("n2"); !strings.Contains(text, "of 5000 addresses the first 32 count") {
		t.Errorf("the Node is told %q", text)
	}
}

// TestConflictCostsItself: the cost of a change of a Node's claims, or of one Service that has lost its front, does not
// grow with the number of Services.
func TestConflictCostsItself(t *testing.T) {
	cost := func(services int) (allocations float64) {
		tracker := tracked(services)
		for i, name := range []string{"x", "y"} {
			tracker.SetService(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: name, CreationTimestamp: metav1.Unix(int64(i), 0)},
				Spec: v1.ServiceSpec{ClusterIP: fmt.Sprintf("10.97.0.%d", i+1), ExternalIPs: []string{"203.0.113.1"}, Ports: []v1.ServicePort{{Port: 80}}}})
		}
		tracker.Update()
		node := NodeHolding{Name: "n2", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.96.0.1")}}
		none := NodeHolding{Name: "n2"}
		slice := crowdSlice(1, 3)
		slice.Namespace, slice.Labels = "b", map[string]string{discovery.LabelServiceName: "y"}
		turn := 0
		return testing.AllocsPerRun(50, func() {
			turn++
			tracker.SetNodeHolding("n2", []*NodeHolding{&node, &none}[turn%2])
			if changed, _ := tracker.Update(); len(changed) > 0 {
				t.Fatalf("a lie changed %v", changed)
			}
			if turn%2 == 1 {
				tracker.SetSlice(slice)
			} else {
				tracker.DeleteSlice(ServiceName{Namespace: "b", Name: slice.Name})
			}
			if changed, _ := tracker.Update(); len(changed) != 1 {
				t.Fatalf("changed are %v", changed)
			}
		})
	}
	few, many := cost(20), cost(5000)
	t.Logf("%.0f allocations among 20 Services, %.0f among 5000", few, many)
	if many > 2*few {
		t.Errorf("a conflict costs %.0f allocations among 20 Services, %.0f among 5000", few, many)
	}
}

// TestHoldersPrint: the input of decisions can be printed, and is what was set last.
func TestHoldersPrint(t *testing.T) {
	tracker := NewTracker(NodeInfo{Name: "n1"}, Holders{PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		APIServers: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.5:6443")}})
	tracker.SetHost(Host{Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.11")}, NextHops: []netip.Addr{netip.MustParseAddr("10.1.0.1")}})
	tracker.SetServiceRanges([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	tracker.SetService(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", CreationTimestamp: metav1.Unix(1, 0)},
		Spec: v1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"203.0.113.1"}, Ports: []v1.ServicePort{{Port: 80}}}})
	tracker.SetNodeHolding("n2", &NodeHolding{Name: "n2", Created: time.Unix(2, 0), Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}})
	tracker.Update()
	holders := tracker.Holders()
	const want = "service ranges: 10.96.0.0/16\npod ranges: 10.244.0.0/16\nAPI servers: 10.1.0.5:6443\nthis host: 10.1.0.11\nnext hops: 10.1.0.1\n" +
		"Node n2: 203.0.113.1 10.244.2.0/24\nnot believed: Node n2 has 203.0.113.1\n"
	if got := holders.String(); got != want {
		t.Errorf("printed is\n%s\nwant\n%s", got, want)
	}
}
