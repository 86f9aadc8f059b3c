package balance

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	hnssim "github.com/winkube/winkube/test/windows/simulators/hns"
)

const (
	bridge = `{"Name":"cbr0","Type":"L2Bridge","Ipams":[{"Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Routes":[{"NextHop":"10.244.1.2","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`
	nat    = `{"Name":"nat","Type":"NAT","Ipams":[{"Subnets":[{"IpAddressPrefix":"172.20.0.0/16","Routes":[{"NextHop":"172.20.0.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`
)

// newClient returns a client of a host of that build, with the pods' bridge and a foreign network.
func newClient(t *testing.T, build int) *client {
	t.Helper()
	log := &calls.Log{}
	c := &client{HNS: hnssim.New(hnssim.Options{Build: build, Log: log}), log: log}
	for _, settings := range []string{bridge, nat} {
		if _, err := c.create("Network", none, settings); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if unknown := log.Unknown(); len(unknown) > 0 {
			t.Errorf("the simulator was asked for what it does not know: %v", unknown)
		}
	})
	return c
}

// host adapts a simulated HNS to the suite. Endpoints are on another node.
type host struct {
	*client
	foreign hns.ID // an endpoint in the foreign network
}

func (h *host) Endpoint(n int, _ v1.Protocol) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(n + 1)}), 8080)
}

func (h *host) Front(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(n + 1)}), 80)
}

var numbers = map[v1.Protocol]uint32{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17}

func (h *host) Observe(_ *testing.T, route proxy.Route) []netip.AddrPort {
	return h.reach(numbers[route.Protocol], route.Front)
}

// Occupy creates a load balancer on a foreign endpoint.
func (h *host) Occupy(t *testing.T, protocol v1.Protocol, front netip.AddrPort) func() {
	t.Helper()
	id, err := h.CreateLoadBalancer(t.Context(), hns.LoadBalancer{VIP: front.Addr(), Protocol: numbers[protocol], ExternalPort: front.Port(), InternalPort: 80,
		Endpoints: []hns.ID{h.foreign}})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := h.DeleteLoadBalancer(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

func (h *host) Traces(t *testing.T) []string {
	var out []string
	for line := range strings.Lines(h.String()) {
		if strings.HasPrefix(line, "load balancer") || strings.Contains(line, "endpoint remote") {
			out = append(out, line)
		}
	}
	return out
}

func (h *host) Writes() int { return h.writes }

func (h *host) Inject(on bool) { h.inject = on }

// TestSuite runs the suite of all back ends, on builds where load balancers are modified in place and on builds where
// they are not.
func TestSuite(t *testing.T) {
	for _, build := range []int{17763, 20348, 26100} {
		t.Run(fmt.Sprint(build), func(t *testing.T) {
			proxytest.Run(t, func(t *testing.T) (proxy.Backend, proxytest.Host) {
				h := &host{client: newClient(t, build)}
				networks, err := list[hnssim.Network](h.client, "Network", `{"Name":"nat"}`)
				if err != nil {
					t.Fatal(err)
				}
				h.foreign, err = h.CreateEndpoint(t.Context(), hns.Network{ID: hns.IDOf(networks[0].ID)}, hns.Endpoint{})
				if err != nil {
					t.Fatal(err)
				}
				return hnslb.New(hnslb.Config{Client: h.client, Network: "cbr0", DSR: true}), h
			})
		})
	}
}

// table returns services with two endpoints each, on other nodes.
func table(services int) *proxy.Table {
	t := &proxy.Table{}
	for i := range services {
		address := func(net byte) netip.Addr { return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}) }
		t.Routes = append(t.Routes, proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: fmt.Sprintf("s%04d", i)}},
			Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: netip.AddrPortFrom(address(96), 80),
			Backends: []proxy.Endpoint{{Addr: netip.AddrPortFrom(address(1), 8080)}, {Addr: netip.AddrPortFrom(address(2), 8080)}}})
	}
	return t
}

// TestDown: while HNS does not answer, its state is unknown and nothing is concluded from it. Afterwards everything is restored, whether
// HNS restores load balancers (26100) or loses them (20348).
func TestDown(t *testing.T) {
	for _, build := range []int{20348, 26100} {
		c := newClient(t, build)
		b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
		want := table(20)
		if err := b.Sync(t.Context(), want, nil); err != nil {
			t.Fatal(err)
		}
		before := c.String()
		c.Crash()
		for _, changed := range [][]proxy.ServiceName{nil, {want.Routes[0].Service.ServiceName}} {
			if err := b.Sync(t.Context(), table(19), changed); !errors.Is(err, hns.ErrDown) {
				t.Errorf("%d: Sync while HNS is down: %v", build, err)
			}
		}
		c.Start()
		writes := c.writes
		if err := b.Sync(t.Context(), want, []proxy.ServiceName{}); err != nil { // no change is announced
			t.Fatal(err)
		}
		if got := c.String(); got != before {
			t.Errorf("%d: after the restart:\n%s\nbefore:\n%s", build, got, before)
		}
		if build == 26100 && c.writes != writes {
			t.Errorf("%d changes although HNS had restored everything", c.writes-writes)
		}
		c.Reboot()
		if err := b.Sync(t.Context(), want, nil); err != nil || c.String() != before {
			t.Errorf("%d: after a reboot: %v\n%s", build, err, c)
		}
	}
}

// TestFormerRun: a new proxy adopts what a killed proxy left if it is right, and removes it otherwise. Foreign objects
// stay.
func TestFormerRun(t *testing.T) {
	c := newClient(t, 20348)
	if err := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"}).Sync(t.Context(), table(10), nil); err != nil {
		t.Fatal(err)
	}
	networks, err := list[hnssim.Network](c, "Network", "")
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.CreateEndpoint(t.Context(), hns.Network{ID: hns.IDOf(networks[1].ID)}, hns.Endpoint{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateLoadBalancer(t.Context(), hns.LoadBalancer{VIP: netip.MustParseAddr("10.97.0.1"), Protocol: 6, ExternalPort: 80, InternalPort: 80, Endpoints: []hns.ID{other}}); err != nil {
		t.Fatal(err)
	}
	writes := c.writes
	if err := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"}).Sync(t.Context(), table(8), nil); err != nil {
		t.Fatal(err)
	}
	if got := c.writes - writes; got != 2+4 { // two load balancers and their four endpoints
		t.Errorf("%d changes, want 6", got)
	}
	if got := strings.Count(c.String(), "load balancer"); got != 9 || !strings.Contains(c.String(), "10.97.0.1") {
		t.Errorf("left:\n%s", c)
	}
}

// TestEndpointsVanish: other programs remove endpoints of load balancers, all of one and one of another; the next whole Sync repairs both.
func TestEndpointsVanish(t *testing.T) {
	c := newClient(t, 20348)
	b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
	want := table(3)
	if err := b.Sync(t.Context(), want, nil); err != nil {
		t.Fatal(err)
	}
	before := c.String()
	endpoints, err := c.Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		if addr := e.Addrs[0].String(); addr == "10.1.0.0" || addr == "10.2.0.0" || addr == "10.1.0.1" {
			if err := c.DeleteEndpoint(t.Context(), e.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Sync(t.Context(), want, nil); err != nil || c.String() != before {
		t.Errorf("after that: %v\n%s\nwant:\n%s", err, c, before)
	}
}

// TestCalls counts calls for 2,000 services with 5,000 endpoints (fewer where load balancers cannot be modified and do not survive a restart). A
// full comparison makes one list per kind (networks, endpoints, load balancers) and one change per object that differs. It also prints the
// underlying HNS calls, several for each object.
func TestCalls(t *testing.T) {
	for _, size := range []struct{ build, services, endpoints, replace int }{{26100, 2000, 5000, 1}, {20348, 200, 500, 2}} {
		build, services, endpoints := size.build, size.services, size.endpoints
		c := newClient(t, build)
		log := c.log
		b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
		want := table(services)
		for i := range services / 2 {
			third := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, byte(i >> 8), byte(i)}), 8080)
			want.Routes[i].Backends = append(want.Routes[i].Backends, proxy.Endpoint{Addr: third})
		}
		lists, writes, all := c.lists, c.writes, len(log.Calls())
		sync := func(what string, changed []proxy.ServiceName, wantLists, wantWrites int) {
			t.Helper()
			if err := b.Sync(t.Context(), want, changed); err != nil {
				t.Fatal(err)
			}
			if c.lists-lists != wantLists || c.writes-writes != wantWrites {
				t.Errorf("%s: %d lists and %d changes, want %d and %d", what, c.lists-lists, c.writes-writes, wantLists, wantWrites)
			}
			t.Logf("build %d, %s: %d lists, %d changes (%d functions of HNS)", build, what, c.lists-lists, c.writes-writes, len(log.Calls())-all)
			lists, writes, all = c.lists, c.writes, len(log.Calls())
		}
		sync(fmt.Sprintf("%d services with %d endpoints cold", services, endpoints), nil, 3, services+endpoints)
		want.Routes[7].Backends = want.Routes[7].Backends[:2]
		sync("one endpoint less", []proxy.ServiceName{want.Routes[7].Service.ServiceName}, 0, 1+size.replace)
		sync("everything compared", nil, 3, 0)
		b = hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
		sync("a new proxy", nil, 3, 0)
		c.Crash()
		c.Start()
		lost := services + endpoints - 1
		if build >= 26100 { // HNS restores
			lost = 0
		}
		sync("HNS restarted", nil, 3, lost)
	}
}

// TestRefused: the back end reports what HNS cannot do and serves the rest.
func TestRefused(t *testing.T) {
	c := newClient(t, 20348)
	b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
	want := table(5)
	want.Routes[0].Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	want.Routes[1].Backends[1].Addr = netip.AddrPortFrom(want.Routes[1].Backends[1].Addr.Addr(), 9090)
	want.Routes[4].Backends[0].Local = true
	failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil))
	var got []string
	for _, f := range failed {
		got = append(got, f.Route.Service.Name)
	}
	if fmt.Sprint(got) != "[s0000 s0001 s0004]" || len(rest) > 0 {
		t.Errorf("failed %v: %v; %v", got, failed, rest)
	}
	for i, want := range []string{"[]", "[10.1.0.1:8080]", "[10.1.0.2:8080 10.2.0.2:8080]", "[10.1.0.3:8080 10.2.0.3:8080]", "[10.2.0.4:8080]"} {
		if got := fmt.Sprint(c.reach(6, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80))); got != want {
			t.Errorf("service %d reaches %s, want %s", i, got, want)
		}
	}
}
