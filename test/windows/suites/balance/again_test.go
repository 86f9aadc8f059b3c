package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	hnssim "github.com/winkube/winkube/test/windows/simulators/hns"
)

// variants are the ways in which HNS may answer: as strictly and orderly as the simulator can, or as Windows is known
// to.
var variants = []hnssim.Options{{}, {DropsNewer: true}, {Contrary: 1}, {DropsNewer: true, Contrary: 2}}

// contrary is newClient with HNS options.
func contrary(t *testing.T, build int, o hnssim.Options) *client {
	t.Helper()
	c := newClient(t, build)
	o.Build, o.Log = build, c.log
	c.HNS = hnssim.New(o)
	for _, settings := range []string{bridge, nat} {
		if _, err := c.create("Network", none, settings); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// every returns a Table with each kind of Route that a load balancer can serve on some build, including those that only
// later builds can.
func every(local netip.Addr) *proxy.Table {
	name := func(n string) proxy.ServicePortName {
		return proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: n}}
	}
	at := func(text string, isLocal bool) proxy.Endpoint {
		return proxy.Endpoint{Addr: netip.MustParseAddrPort(text), Local: isLocal}
	}
	here, there, far := at(local.String()+":8080", true), at("10.244.2.7:8080", false), at("10.244.3.7:8080", false)
	front := netip.MustParseAddrPort
	t := &proxy.Table{Routes: []proxy.Route{
		{Service: name("a"), Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: front("10.96.0.1:80"), Backends: []proxy.Endpoint{here, there, far}},
		{Service: name("b"), Kind: proxy.ClusterIP, Protocol: v1.ProtocolUDP, Front: front("10.96.0.2:53"), Backends: []proxy.Endpoint{there}},
		{Service: name("c"), Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: front("10.96.0.3:80"), Affinity: proxy.DefaultAffinity, Backends: []proxy.Endpoint{there, far}},
		{Service: name("d"), Kind: proxy.NodePort, Protocol: v1.ProtocolTCP, Front: front("0.0.0.0:30080"), Backends: []proxy.Endpoint{here, there}},
		{Service: name("e"), Kind: proxy.ExternalIP, Protocol: v1.ProtocolTCP, Front: front("192.0.2.1:80"), Backends: []proxy.Endpoint{there}},
		{Service: name("f"), Kind: proxy.ExternalIP, Protocol: v1.ProtocolTCP, Front: front("192.0.2.2:80"), Affinity: proxy.DefaultAffinity, Backends: []proxy.Endpoint{here}},
		{Service: name("g"), Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: front("[fd00:96::1]:80"), Affinity: proxy.DefaultAffinity, Backends: []proxy.Endpoint{at("[fd00:244:2::7]:8080", false)}},
		{Service: name("h"), Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: front("10.96.0.4:80"), Affinity: time.Minute, Backends: []proxy.Endpoint{there}},
	}}
	return t
}

// plant creates foreign objects: endpoints, one of them remote, on a foreign network, and load balancers on them by both interfaces, one at a front
// that we have too, on another port. It returns how HNS prints them.
func plant(t *testing.T, c *client) (lines []string) {
	t.Helper()
	networks, err := list[hnssim.Network](c, "Network", `{"Name":"nat"}`)
	if err != nil {
		t.Fatal(err)
	}
	theirs := hns.Network{ID: hns.IDOf(networks[0].ID)}
	one, err := c.CreateEndpoint(t.Context(), theirs, hns.Endpoint{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateLoadBalancer(t.Context(), hns.LoadBalancer{VIP: netip.MustParseAddr("10.96.0.1"), Protocol: 6, ExternalPort: 443, InternalPort: 443, Endpoints: []hns.ID{one}}); err != nil {
		t.Fatal(err)
	}
	elb := fmt.Sprintf(`{"References":["/endpoints/%s"],"Policies":[{"Type":"ELB","VIPs":["10.97.0.1"],"Protocol":17,"InternalPort":53,"ExternalPort":53}]}`, one.Upper())
	if _, err := c.call("HNSCall", "POST", "/policylists/", elb); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(c.String()), "\n")
}

// TestAgain: on each build, however HNS answers, a second whole Sync changes nothing, nor does one of a new proxy, and foreign objects stay. The
// back end does not claim what the build's HNS cannot do.
func TestAgain(t *testing.T) {
	for _, build := range []int{17763, 20348, 26100} {
		for _, variant := range variants {
			c := contrary(t, build, variant)
			what := fmt.Sprintf("build %d, %+v", build, variant)
			ours, err := c.Network(t.Context(), "cbr0")
			if err != nil {
				t.Fatal(err)
			}
			local := netip.MustParseAddr("10.244.1.7")
			if _, err := c.CreateEndpoint(t.Context(), ours, hns.Endpoint{Addrs: []netip.Addr{local}}); err != nil {
				t.Fatal(err)
			}
			before := plant(t, c)
			cfg := hnslb.Config{Client: c, Network: "cbr0", DSR: true, Build: build}
			b, want := hnslb.New(cfg), every(local)
			want.Routes = slices.DeleteFunc(want.Routes, func(r proxy.Route) bool { return !b.Serves(&r) })
			if got, all := len(want.Routes), map[int]int{17763: 4, 20348: 7, 26100: 7}[build]; got != all {
				t.Errorf("%s: serves %d Routes, want %d", what, got, all)
			}
			if err := b.Sync(t.Context(), want, nil); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			state, log := c.String(), len(c.log.Calls())
			for i, again := range []*hnslb.Balancer{b, b, hnslb.New(cfg), hnslb.New(cfg)} {
				if err := again.Sync(t.Context(), want, nil); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if changes := changing(c.log.Calls()[log:]); len(changes) > 0 || c.String() != state {
					t.Errorf("%s: Sync %d changes\n%v", what, i+2, changes)
					log = len(c.log.Calls())
				}
			}
			for _, line := range before {
				if !strings.Contains(c.String(), line) {
					t.Errorf("%s: %q of others is gone:\n%s", what, line, c)
				}
			}
			if err := hnslb.New(cfg).Sync(t.Context(), &proxy.Table{}, nil); err != nil || strings.TrimSpace(c.String()) != strings.Join(before, "\n") {
				t.Errorf("%s: after cleaning up (%v):\n%s\nwant:\n%s", what, err, c, strings.Join(before, "\n"))
			}
		}
	}
}

// changing returns the calls that change something.
func changing(list []calls.Call) (out []string) {
	for _, call := range list {
		read := call.Function == "HNSCall" && len(call.Args) > 0 && call.Args[0] == "GET"
		for _, prefix := range []string{"HcnEnumerate", "HcnOpen", "HcnQuery", "HcnClose"} {
			read = read || strings.HasPrefix(call.Function, prefix)
		}
		if !read {
			out = append(out, call.String())
		}
	}
	return out
}

// TestOlderHNS: the back end reports what HNS of Server 2019 cannot do for each Route, and does not create it. On an overlay, which has no
// alternative, it creates it without session affinity.
func TestOlderHNS(t *testing.T) {
	for _, overlay := range []bool{false, true} {
		c := newClient(t, 17763)
		if overlay {
			c.HNS = hnssim.New(hnssim.Options{Build: 17763, Log: c.log})
			if _, err := c.create("Network", none, overlaySettings); err != nil {
				t.Fatal(err)
			}
		}
		cfg := hnslb.Config{Client: c, Network: map[bool]string{false: "cbr0", true: "winkube.4096"}[overlay], Build: 17763, Overlay: overlay,
			Node: func() (netip.Addr, string) { return netip.MustParseAddr(nodeIP), nodeMAC }}
		want := every(netip.MustParseAddr("10.244.2.7"))
		want.Routes = want.Routes[2:3]
		failed, rest := proxy.RouteErrors(hnslb.New(cfg).Sync(t.Context(), want, nil))
		if len(failed) != 1 || len(rest) > 0 || failed[0].Err.Error() != "HNS load balancers of Windows build 17763 have no session affinity; want build 20348 (Server 2022) or later, or a network whose pods reach the relay (host-gateway, upstream)" {
			t.Errorf("overlay %t: %v, %v", overlay, failed, rest)
		}
		if made := strings.Contains(c.String(), "load balancer 10.96.0.3"); made != overlay || hnslb.New(cfg).Serves(&want.Routes[0]) != overlay {
			t.Errorf("overlay %t: made %t, serves %t", overlay, made, hnslb.New(cfg).Serves(&want.Routes[0]))
		}
	}
}

// TestForgetful: a field that HNS never returns does not cause a load balancer to be recreated repeatedly; one that changes later
// does.
func TestForgetful(t *testing.T) {
	c := &forgetful{client: newClient(t, 20348)}
	b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0"})
	want := table(1)
	want.Routes[0].Affinity = proxy.DefaultAffinity
	for i, changes := range []int{3, 0, 0} {
		writes := c.writes
		if err := b.Sync(t.Context(), want, nil); err != nil || c.writes-writes != changes {
			t.Errorf("Sync %d: %v, %d changes, want %d", i+1, err, c.writes-writes, changes)
		}
	}
	c.ports = true // as if another program changed it
	writes := c.writes
	if err := b.Sync(t.Context(), want, nil); err != nil || c.writes == writes {
		t.Errorf("another port: %v, %d changes", err, c.writes-writes)
	}
}
