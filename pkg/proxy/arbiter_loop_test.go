package proxy_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

func testNode(name string, addresses ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(100, 0)}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

func (r *rig) event(want ...string) {
	r.t.Helper()
	select {
	case got := <-r.events.Events:
		for _, text := range want {
			if !strings.Contains(got, text) {
				r.t.Fatalf("event %q, want %q in it", got, text)
			}
		}
	case <-time.After(time.Minute):
		r.t.Fatalf("no event with %q", want)
	}
}

func (r *rig) quiet() {
	r.t.Helper()
	if len(r.events.Events) > 0 {
		r.t.Fatalf("event %q", <-r.events.Events)
	}
}

// TestLyingNode: a Node that claims a cluster IP, an external IP and a load balancer's address, constantly or
// alternating with the truth, changes nothing: it causes no Sync, and one Event on the Node.
func TestLyingNode(t *testing.T) {
	r := newRig(t)
	r.events.IncludeObject = true
	close(r.synced)
	web := testService("web", "10.96.0.1")
	web.Spec.ExternalIPs = []string{"203.0.113.1"}
	web.Spec.Type, web.Status.LoadBalancer.Ingress = v1.ServiceTypeLoadBalancer, []v1.LoadBalancerIngress{{IP: "203.0.113.2"}}
	r.inbox.SetService(web)
	r.inbox.SetSlice(testSlice("web", "10.244.0.1"))
	r.inbox.SetNode(testNode("n1", "10.1.0.11"))
	r.inbox.SetNode(testNode("n2", "10.1.0.12"))
	r.run()
	fronts := func() string {
		var out []string
		for _, front := range []string{"10.96.0.1:80", "203.0.113.1:80", "203.0.113.2:80"} {
			if route, ok := r.backend.Route(v1.ProtocolTCP, netip.MustParseAddrPort(front)); ok {
				out = append(out, fmt.Sprint(route.Backends[0].Addr))
			}
		}
		return strings.Join(out, " ")
	}
	r.until("all three", func() bool { return fronts() == "10.244.0.1:8080 10.244.0.1:8080 10.244.0.1:8080" })
	for i := range 60 {
		r.inbox.SetNode([]*v1.Node{testNode("n2", "10.1.0.12", "10.96.0.1", "203.0.113.1", "203.0.113.2"), testNode("n2", "203.0.113.1"), testNode("n2", "10.1.0.12")}[i%3])
	}
	r.inbox.SetNode(testNode("n2", "203.0.113.1", "10.1.0.12"))
	r.event("AddressClaimRefused", "Node status.addresses", "203.0.113.1 is an address of Service a/web", "kind=Node")
	for i := range 20 {
		r.inbox.SetNode(testNode("n2", "203.0.113.2", fmt.Sprintf("10.1.0.%d", 100+i)))
	}
	r.inbox.SetSlice(testSlice("web", "10.244.0.2"))
	r.until("a change", func() bool { return fronts() == "10.244.0.2:8080 10.244.0.2:8080 10.244.0.2:8080" })
	if calls := r.backend.Calls(); !slices.Equal(calls, []string{"everything", "[a/web]"}) {
		t.Errorf("Syncs were %v", calls)
	}
	r.quiet()
}

// TestNodeBefore: an external IP that is another node's address is left to that node without an Event. A change of the
// Node's addresses costs only a Sync of the Services that use them.
func TestNodeBefore(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	web := testService("web", "10.96.0.1")
	web.CreationTimestamp, web.Spec.ExternalIPs = metav1.Unix(200, 0), []string{"10.1.0.12"}
	r.inbox.SetService(web)
	r.inbox.SetService(testService("other", "10.96.0.2"))
	r.inbox.SetNode(testNode("n2", "10.1.0.12"))
	r.run()
	r.until("the cluster IP", func() bool { return strings.Contains(r.backend.String(), "a/web") })
	if text := r.backend.String(); strings.Contains(text, "10.1.0.12") {
		t.Fatalf("another node's address is served here:\n%s", text)
	}
	r.inbox.SetNode(testNode("n2", "10.1.0.13"))
	r.until("the address that the node has no more", func() bool { return strings.Contains(r.backend.String(), "10.1.0.12") })
	r.inbox.SetNode(testNode("n2", "10.1.0.12"))
	r.until("the node has it again", func() bool { return !strings.Contains(r.backend.String(), "10.1.0.12") })
	if calls := r.backend.Calls(); !slices.Equal(calls, []string{"everything", "[a/web]", "[a/web]"}) {
		t.Errorf("Syncs were %v", calls)
	}
	r.quiet()
}

// TestTakeover: a Service that uses another's address gets an Event, the other one does not; it is served when the
// holder is deleted.
func TestTakeover(t *testing.T) {
	r := newRig(t)
	r.events.IncludeObject = true
	close(r.synced)
	r.inbox.SetService(testService("dns", "10.96.0.10"))
	r.run()
	r.until("the victim", func() bool { return strings.Contains(r.backend.String(), "10.96.0.10") })
	thief := testService("thief", "10.96.7.7")
	thief.Namespace, thief.UID, thief.Spec.ExternalIPs = "aaa", "thief", []string{"10.96.0.10"}
	r.inbox.SetService(thief)
	r.event("AddressRefused", "Service spec.externalIPs[0]: 10.96.0.10 is the cluster IP of Service a/dns", "kind=Service")
	r.until("the thief", func() bool { return strings.Contains(r.backend.String(), "10.96.7.7") })
	if route, ok := r.backend.Route(v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.10:80")); !ok || route.Service.Name != "dns" {
		t.Fatalf("the cluster IP leads to %s", route.Service)
	}
	r.inbox.DeleteService(name("dns"))
	r.until("the holder is gone", func() bool {
		route, ok := r.backend.Route(v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.10:80"))
		return ok && route.Service.Name == "thief"
	})
	r.inbox.SetService(testService("dns", "10.96.0.10"))
	r.event("AddressRefused", "kind=Service")
	r.until("and back", func() bool {
		route, ok := r.backend.Route(v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.10:80"))
		return ok && route.Service.Name == "dns"
	})
	r.quiet()
}

// TestHostChangesBefore: an address that the host has when a Service starts to claim it is never served, not even
// briefly.
func TestHostChangesBefore(t *testing.T) {
	hints := make(chan struct{}, 1)
	served := &servedOnce{Backend: proxytest.NewBackend(), front: netip.MustParseAddrPort("10.1.0.1:80")}
	r := newRigOf(t, func(cfg *proxy.LoopConfig) { cfg.Hints, cfg.Backend = hints, served })
	close(r.synced)
	r.run()
	<-served.Synced()
	thief := testService("thief", "10.96.0.1")
	thief.Spec.ExternalIPs = []string{"10.1.0.1"}
	r.host.Store(&proxy.Host{NextHops: []netip.Addr{netip.MustParseAddr("10.1.0.1")}})
	r.inbox.SetService(thief)
	hints <- struct{}{}
	r.event("AddressRefused", "10.1.0.1 is a next hop")
	if served.ever.Load() {
		t.Error("the gateway's port was the Service's for a moment")
	}
}

// servedOnce records whether a Sync ever contained a front.
type servedOnce struct {
	*proxytest.Backend
	front netip.AddrPort
	ever  atomic.Bool
}

func (b *servedOnce) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	err := b.Backend.Sync(ctx, want, changed)
	if _, ok := b.Route(v1.ProtocolTCP, b.front); ok {
		b.ever.Store(true)
	}
	return err
}

// TestHostChanges: the host's state is read again after each hint, and a Service that uses a gateway or a reserved port
// gets an Event.
func TestHostChanges(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	web := testService("web", "10.96.0.1")
	web.Spec.ExternalIPs = []string{"10.1.0.1", "10.1.0.11"}
	web.Spec.Ports = append(web.Spec.Ports, v1.ServicePort{Name: "kubelet", Port: 10250})
	r.inbox.SetService(web)
	r.run()
	r.until("everything", func() bool { return strings.Count(r.backend.String(), "ExternalIP") == 4 })
	r.host.Store(&proxy.Host{Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.11")}, NextHops: []netip.Addr{netip.MustParseAddr("10.1.0.1")}})
	r.hints <- struct{}{}
	r.until("what is left", func() bool { return strings.Count(r.backend.String(), "ExternalIP") == 1 })
	r.event("10.1.0.1 is a next hop of this node's routes")
	r.event("10.1.0.11 is an address of this node, and port 10250 is reserved there for the kubelet")
	r.quiet()
}

// TestNodePortBecomesReserved: when this Node's kubelet reports a port that Services have as node port and as health
// check node port, both are withdrawn with an Event, the rest stays, and both return when the kubelet has moved on.
func TestNodePortBecomesReserved(t *testing.T) {
	checks := &lastChecks{Backend: proxytest.NewBackend()}
	r := newRigOf(t, func(cfg *proxy.LoopConfig) { cfg.Backend = checks })
	r.backend = checks.Backend
	close(r.synced)
	node := func(port int32) *v1.Node {
		n := testNode("n1", "10.1.0.11")
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		return n
	}
	web, lb := testService("web", "10.96.0.1"), testService("lb", "10.96.0.2")
	web.Spec.Type, web.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, 11250
	lb.Spec.Type, lb.Spec.Ports[0].NodePort, lb.Spec.HealthCheckNodePort = v1.ServiceTypeLoadBalancer, 30080, 12250
	lb.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
	r.inbox.SetService(web)
	r.inbox.SetService(lb)
	r.inbox.SetNode(node(10250))
	r.run()
	has := func(nodePort, health bool) func() bool {
		return func() bool {
			text, number := checks.String(), 0
			if health {
				number = 12250
			}
			return strings.Contains(text, "IPv4:11250") == nodePort && checks.port.Load() == int32(number) &&
				strings.Contains(text, "10.96.0.1:80") && strings.Contains(text, "IPv4:30080")
		}
	}
	r.until("both ports", has(true, true))
	r.inbox.SetNode(node(11250))
	r.event("Warning AddressRefused Service spec.ports[0].nodePort: TCP port 11250 is reserved on this node for the kubelet: want another port")
	r.until("no node port", has(false, true))
	r.inbox.SetNode(node(12250))
	r.event("Warning AddressRefused Service spec.healthCheckNodePort: TCP port 12250 is reserved on this node for the kubelet: want another port")
	r.until("no health check", has(true, false))
	r.inbox.SetNode(node(10250))
	r.until("both again", has(true, true))
	r.quiet()
}

// lastChecks records the port of the first health check of the last Sync; 0: none.
type lastChecks struct {
	*proxytest.Backend
	port atomic.Int32
}

func (b *lastChecks) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	port := int32(0)
	if len(want.HealthChecks) > 0 {
		port = int32(want.HealthChecks[0].Port)
	}
	b.port.Store(port)
	return b.Backend.Sync(ctx, want, changed)
}
