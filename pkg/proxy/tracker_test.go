package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// world is a small cluster that changes at random.
type world struct {
	rand     *rand.Rand
	services map[ServiceName]*v1.Service
	slices   map[types.NamespacedName]*discovery.EndpointSlice
	node     NodeInfo
}

func newWorld(seed uint64) *world {
	return &world{rand: rand.New(rand.NewPCG(seed, 1)), services: map[ServiceName]*v1.Service{}, slices: map[types.NamespacedName]*discovery.EndpointSlice{},
		node: NodeInfo{Name: "n1"}}
}

func (w *world) maybe(one int) bool { return w.rand.IntN(one) == 0 }

func (w *world) service(name ServiceName) *v1.Service {
	i := w.rand.IntN(5)
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	s.Spec.ClusterIP = fmt.Sprintf("10.96.0.%d", 1+w.rand.IntN(9))
	s.Spec.Ports = []v1.ServicePort{{Name: "a", Port: 80, NodePort: []int32{30000, 30001, 8080, 80, 10250}[i]}, {Name: "b", Port: []int32{0, 1, 2, 4789}[w.rand.IntN(4)], Protocol: v1.ProtocolUDP}}
	s.Spec.Type = []v1.ServiceType{v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName}[w.rand.IntN(4)]
	if w.maybe(2) {
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = []int32{32000, 32001, 8080, 10256, 30000}[w.rand.IntN(5)]
	}
	if w.maybe(5) {
		s.Labels = map[string]string{labelProxyName: "x"}
	}
	if w.maybe(3) {
		s.Spec.ExternalIPs = []string{w.address(), "bad"}
	}
	if w.maybe(2) {
		s.CreationTimestamp = metav1.Unix(int64(w.rand.IntN(5)), 0)
	}
	if w.maybe(3) {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP, fmt.Sprintf("fd00:96::%d", 1+i)}
	}
	if w.maybe(3) {
		s.Spec.InternalTrafficPolicy = ptr.To(v1.ServiceInternalTrafficPolicyLocal)
	}
	if w.maybe(3) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	}
	if w.maybe(3) {
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: w.address()}, {IP: fmt.Sprintf("2001:db8::%d", 1+i)}}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "worse"}[:1+i%2]
	}
	return s
}

func (w *world) slice(key types.NamespacedName) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name,
		Labels: map[string]string{discovery.LabelServiceName: fmt.Sprintf("s%d", w.rand.IntN(50))}}, AddressType: discovery.AddressTypeIPv4}
	if w.maybe(10) {
		s.Labels[labelHeadless] = ""
	}
	s.Ports = []discovery.EndpointPort{{Name: ptr.To("a"), Port: ptr.To[int32](8080)}}
	address := "10.244.0.%d"
	if w.maybe(4) {
		s.AddressType, address = discovery.AddressTypeIPv6, "fd00:244::%d"
	}
	for range w.rand.IntN(4) {
		hints := &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "z1"}}}
		if w.maybe(3) {
			hints.ForNodes = []discovery.ForNode{{Name: fmt.Sprintf("n%d", 1+w.rand.IntN(2))}}
		}
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{fmt.Sprintf(address, w.rand.IntN(8))},
			NodeName: ptr.To(fmt.Sprintf("n%d", 1+w.rand.IntN(2))), Hints: hints,
			Conditions: discovery.EndpointConditions{Ready: ptr.To(w.maybe(2)), Serving: ptr.To(w.maybe(2)), Terminating: ptr.To(w.maybe(2))}})
	}
	return s
}

// address returns an address that a Service may have.
func (w *world) address() string {
	list := []string{"203.0.113.1", "203.0.113.2", "203.0.113.3", "10.96.0.3", "10.96.1.9", "10.244.1.7", "10.1.0.11", "10.1.0.12", "10.1.0.13", "10.1.0.1"}
	return list[w.rand.IntN(len(list))]
}

// holder changes something that another holder has.
func (w *world) holder(t *Tracker) {
	switch w.rand.IntN(7) {
	case 6:
		key := types.NamespacedName{Namespace: "default", Name: "kubernetes"}
		s := w.slice(key)
		s.Labels, s.AddressType = map[string]string{discovery.LabelServiceName: "kubernetes"}, discovery.AddressTypeIPv4
		s.Endpoints = []discovery.Endpoint{{Addresses: []string{w.address()}}}
		w.slices[key] = s
		t.SetSlice(s)
	case 0:
		t.SetHost(Host{Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr(w.address())}[:1+w.rand.IntN(2)],
			NextHops: []netip.Addr{netip.MustParseAddr("10.1.0.1")}[:w.rand.IntN(2)]})
	case 1:
		t.SetServiceRanges([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}[:w.rand.IntN(3)])
	case 2:
		t.SetNodeHolding(fmt.Sprintf("n%d", 1+w.rand.IntN(4)), nil)
	default:
		n := NodeHolding{Name: fmt.Sprintf("n%d", 1+w.rand.IntN(4)), Created: time.Unix(int64(w.rand.IntN(5)), 0)}
		for range w.rand.IntN(3) {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(w.address()))
		}
		n.Primary = n.Addresses[:min(len(n.Addresses), 1)]
		if w.maybe(2) {
			n.PodRanges = []netip.Prefix{netip.MustParsePrefix([]string{"10.244.1.0/24", "203.0.113.2/32", "0.0.0.0/0"}[w.rand.IntN(3)])}
		}
		n.KubeletPort = []uint16{0, 80}[w.rand.IntN(2)]
		t.SetNodeHolding(n.Name, &n)
	}
}

// event changes the world and reports the change to the Tracker.
func (w *world) event(t *Tracker) {
	namespace := fmt.Sprintf("ns%d", w.rand.IntN(2))
	name := ServiceName{Namespace: namespace, Name: fmt.Sprintf("s%d", w.rand.IntN(50))}
	key := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("e%d", w.rand.IntN(50))}
	switch w.rand.IntN(14) {
	case 0:
		delete(w.services, name)
		t.DeleteService(name)
	case 1, 2:
		delete(w.slices, key)
		t.DeleteSlice(key)
	case 3:
		w.node.Zone = fmt.Sprintf("z%d", w.rand.IntN(3))
		t.SetNode(w.node)
	case 4, 5, 6, 7:
		w.services[name] = w.service(name)
		t.SetService(w.services[name])
	case 8, 9:
		w.holder(t)
	default:
		w.slices[key] = w.slice(key)
		t.SetSlice(w.slices[key])
	}
}

// check compares the Tracker with Build, and changed with what changed.
func (w *world) check(t *testing.T, tracker *Tracker, before *Table, changed []ServiceName) {
	t.Helper()
	var services []*v1.Service
	for _, s := range w.services {
		services = append(services, s)
	}
	var list []*discovery.EndpointSlice
	for _, s := range w.slices {
		list = append(list, s)
	}
	want, problems := BuildWithProblems(services, list, w.node, tracker.Holders())
	if got := tracker.Table(); got.String() != want.String() {
		t.Fatalf("the Tracker has\n%s\nBuild makes\n%s", got, want)
	}
	if got := tracker.AllProblems(); len(got)+len(problems) > 0 && !reflect.DeepEqual(got, problems) {
		t.Fatalf("the Tracker has problems %v, Build %v", got, problems)
	}
	for name := range w.services {
		healthBefore, _ := before.HealthCheckOf(name)
		health, _ := want.HealthCheckOf(name)
		differs := !routesEqual(before.Of(name), want.Of(name)) || healthBefore != health
		if slices.Contains(changed, name) != differs {
			t.Fatalf("%s differs: %v, but changed is %v", name, differs, changed)
		}
	}
}

func TestTrackerIsBuild(t *testing.T) {
	for seed := range uint64(15) {
		w := newWorld(seed)
		tracker := NewTracker(w.node, Holders{})
		for range 60 {
			before := &Table{Routes: slices.Clone(tracker.Table().Routes), HealthChecks: slices.Clone(tracker.Table().HealthChecks)}
			for range w.rand.IntN([]int{3, 120}[w.rand.IntN(2)]) { // single changes, and more than spliceLimit
				w.event(tracker)
			}
			changed, _ := tracker.Update()
			w.check(t, tracker, before, changed)
		}
	}
}

// FuzzTracker derives events from a seed; the seed corpus is a random walk.
func FuzzTracker(f *testing.F) {
	f.Add(uint64(1), uint8(10))
	f.Add(uint64(7), uint8(200))
	f.Fuzz(func(t *testing.T, seed uint64, events uint8) {
		w := newWorld(seed)
		tracker := NewTracker(w.node, Holders{})
		for range events {
			before := &Table{Routes: slices.Clone(tracker.Table().Routes), HealthChecks: slices.Clone(tracker.Table().HealthChecks)}
			w.event(tracker)
			changed, _ := tracker.Update()
			w.check(t, tracker, before, changed)
		}
	})
}

// FuzzBuild checks the guarantees of Build that every back end relies on, whatever a Service contains.
func FuzzBuild(f *testing.F) {
	f.Add("10.96.0.1", "fd00::1", "203.0.113.1", "10.0.0.0/8", "10.244.0.1", int32(80), int32(30080), int32(8080), "IPv4")
	f.Add("x", "::", "127.0.0.1", "/", "0.0.0.0", int32(-1), int32(70000), int32(0), "FQDN")
	f.Add("::ffff:10.0.0.1", "010.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.0/104", "::ffff:1.2.3.4", int32(1), int32(0), int32(65535), "IPv6")
	f.Fuzz(func(t *testing.T, ip, ip2, external, source, endpoint string, port, nodePort, target int32, family string) {
		service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip, ip2},
			Type: v1.ServiceTypeLoadBalancer, ExternalIPs: []string{external}, LoadBalancerSourceRanges: []string{source},
			Ports: []v1.ServicePort{{Port: port, NodePort: nodePort}}}}
		service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: external}}
		slice := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c", Labels: map[string]string{discovery.LabelServiceName: "b"}},
			AddressType: discovery.AddressType(family), Ports: []discovery.EndpointPort{{Port: &target}}, Endpoints: []discovery.Endpoint{{Addresses: []string{endpoint}}}}
		for _, r := range Build([]*v1.Service{service}, []*discovery.EndpointSlice{slice}, NodeInfo{Name: "n"}, Holders{}).Routes {
			if !r.Front.IsValid() || r.Front.Port() == 0 || r.Front.Addr().Is4In6() || r.Front.Addr().Zone() != "" || r.Front.Addr().IsMulticast() {
				t.Errorf("bad front: %+v", r)
			}
			if r.Front.Addr().IsUnspecified() != (r.Kind == NodePort) {
				t.Errorf("unspecified front: %+v", r)
			}
			for _, e := range r.Backends {
				if !e.Addr.IsValid() || e.Addr.Port() == 0 || e.Addr.Addr().Is4() != r.Front.Addr().Is4() {
					t.Errorf("bad backend: %+v", r)
				}
			}
			for _, p := range r.Sources {
				if !p.IsValid() || p.Masked() != p {
					t.Errorf("bad source range: %+v", r)
				}
			}
		}
	})
}

// TestTrim: Build reads nothing that the watch removes.
func TestTrim(t *testing.T) {
	for seed := range uint64(5) {
		w := newWorld(seed)
		tracker := NewTracker(w.node, Holders{})
		for range 300 {
			w.event(tracker)
		}
		var services []*v1.Service
		for _, s := range w.services {
			services = append(services, s)
		}
		var list []*discovery.EndpointSlice
		for _, s := range w.slices {
			s.Labels["app"], s.UID, s.Annotations = "x", "u", map[string]string{"a": "b", v1.EndpointsLastChangeTriggerTime: "then"}
			list = append(list, s)
		}
		want := Build(services, list, w.node, Holders{}).String()
		for _, s := range services {
			if _, err := trim(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range list {
			if _, err := trim(s); err != nil || s.Annotations[v1.EndpointsLastChangeTriggerTime] != "then" || len(s.Annotations) > 1 || s.Labels["app"] != "" {
				t.Fatalf("%v: left %v, %v", err, s.Annotations, s.Labels)
			}
		}
		if got := Build(services, list, w.node, Holders{}).String(); got != want {
			t.Fatalf("trimmed:\n%s\nwas:\n%s", got, want)
		}
	}
}

// crowd returns services of one port with five endpoints each.
func crowd(services int) (out []*v1.Service, slices []*discovery.EndpointSlice) {
	for i := range services {
		out = append(out, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("s%d", i)},
			Spec: v1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), Ports: []v1.ServicePort{{Port: 80}}}})
		slices = append(slices, crowdSlice(i, 1))
	}
	return out, slices
}

func crowdSlice(i, last int) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("e%d", i), Labels: map[string]string{discovery.LabelServiceName: fmt.Sprintf("s%d", i)}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Port: ptr.To[int32](8080)}}}
	for j := range 5 {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", last, i/250, j+1)}})
	}
	return s
}

func tracked(services int) *Tracker {
	tracker := NewTracker(NodeInfo{Name: "n1"}, Holders{})
	list, slices := crowd(services)
	for i := range list {
		tracker.SetService(list[i])
		tracker.SetSlice(slices[i])
	}
	return tracker
}

// BenchmarkCold builds the first Table of a large cluster.
func BenchmarkCold(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		tracker := tracked(10000)
		b.StartTimer()
		tracker.Update()
	}
}

// BenchmarkOneEndpoint changes one endpoint among many services.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tracker := tracked(n)
			tracker.Update()
			for i := 0; b.Loop(); i++ {
				tracker.SetSlice(crowdSlice(7, 2+i%2))
				if changed, _ := tracker.Update(); len(changed) != 1 {
					b.Fatal(changed)
				}
			}
		})
	}
}
