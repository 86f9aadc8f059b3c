package hnslb

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// overlaid is a ledger on an overlay whose remote hosts change.
type overlaid struct {
	quiet  // HNS also removes an endpoint that a load balancer uses (kubernetes/kubernetes#76316)
	remote []hns.RemoteSubnet
}

func (o *overlaid) Network(context.Context, string) (hns.Network, error) {
	return hns.Network{ID: hns.IDOf("n"), Name: "winkube.4096", Overlay: true, Subnet: netip.MustParsePrefix("10.244.1.0/24"), Remote: slices.Clone(o.remote)}, nil
}

func onOverlay(remote ...hns.RemoteSubnet) (*overlaid, *Balancer) {
	o := &overlaid{quiet{newLedger()}, remote}
	return o, New(Config{Client: o, Network: "winkube.4096", Node: func() (netip.Addr, string) {
		return netip.MustParseAddr("10.1.0.11"), "02-00-00-00-00-09"
	}})
}

var second = hns.RemoteSubnet{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("10.1.0.12")}

// one returns the Table of a Service at 10.96.0.1 with these endpoints; those in 10.244.1.0/24 are on this node.
func one(endpoints ...string) *proxy.Table {
	r := clusterIP(0, 1)
	for _, text := range endpoints {
		addr := netip.MustParseAddrPort(text)
		r.Backends = append(r.Backends, proxy.Endpoint{Addr: addr, Local: netip.MustParsePrefix("10.244.1.0/24").Contains(addr.Addr())})
	}
	slices.SortFunc(r.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return &proxy.Table{Routes: []proxy.Route{r}}
}

// TestSourceVIP: connections to endpoints outside the overlay use the node's address (upstream's proxier.go
// syncProxyRules: public and node addresses).
func TestSourceVIP(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints []string
		want      string
	}{
		"another node's pod":      {[]string{"10.244.2.7:80"}, "10.244.1.2"},
		"the API server":          {[]string{"10.1.0.1:6443"}, "10.1.0.11"},
		"a node of the overlay":   {[]string{"10.1.0.12:6443"}, "10.1.0.11"},
		"a pod and a public host": {[]string{"10.244.2.7:80", "203.0.113.5:80"}, "10.1.0.11"},
	} {
		o, b := onOverlay(second)
		if err := b.Sync(t.Context(), one(c.endpoints...), nil); err != nil {
			t.Fatal(err)
		}
		for _, lb := range o.balancers {
			if lb.SourceVIP.String() != c.want {
				t.Errorf("%s: asked from %s, want %s", name, lb.SourceVIP, c.want)
			}
		}
		if len(o.balancers) != 1 {
			t.Errorf("%s: %v", name, o.print())
		}
	}
}

// dashed is an HNS that returns hardware addresses in its own notation.
type dashed struct{ *overlaid }

func (d dashed) CreateEndpoint(ctx context.Context, n hns.Network, e hns.Endpoint) (hns.ID, error) {
	e.MAC = strings.ToUpper(strings.ReplaceAll(e.MAC, ":", "-"))
	return d.overlaid.CreateEndpoint(ctx, n, e)
}

// TestLeavesOverlay: the next run recognizes what a previous run created, in HNS' notation. A node whose address is
// unknown is asked again.
func TestLeavesOverlay(t *testing.T) {
	o, _ := onOverlay(second)
	addr := netip.Addr{}
	cfg := Config{Client: dashed{o}, Network: "winkube.4096", Node: func() (netip.Addr, string) { return addr, "02:0a:00:00:00:09" }}
	b := New(cfg)
	if err := b.Sync(t.Context(), one("10.244.2.7:80"), nil); err == nil || !strings.Contains(err.Error(), "the node's address") || o.done > 0 {
		t.Errorf("no address: %v, %d calls", err, o.done)
	}
	addr = netip.MustParseAddr("10.1.0.11")
	if err := b.Sync(t.Context(), one("10.244.2.7:80"), []proxy.ServiceName{}); err != nil || len(o.endpoints) != 3 {
		t.Errorf("%v, %v", err, o.print())
	}
	if err := New(cfg).Sync(t.Context(), &proxy.Table{}, nil); err != nil || len(o.print()) > 0 {
		t.Errorf("%v; left behind: %v", err, o.print())
	}
}

// TestNodesOfOverlay: an endpoint that was created before its node was known leads to that node once it is, and its
// load balancer to the endpoint.
func TestNodesOfOverlay(t *testing.T) {
	o, b := onOverlay()
	want := one("10.244.2.7:80")
	provider := func() netip.Addr {
		for _, e := range o.endpoints {
			if e.Addrs[0] == netip.MustParseAddr("10.244.2.7") {
				return e.Provider
			}
		}
		return netip.Addr{}
	}
	steps := []struct {
		remote []hns.RemoteSubnet
		want   string
	}{{nil, "10.1.0.11"}, {[]hns.RemoteSubnet{second}, "10.1.0.12"}, {[]hns.RemoteSubnet{second}, "10.1.0.12"}}
	for i, step := range steps {
		o.remote = step.remote
		lists, done := o.lists, o.done
		if err := b.Sync(t.Context(), want, []proxy.ServiceName{}); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if got := provider(); got != netip.MustParseAddr(step.want) {
			t.Errorf("step %d: the endpoint is on %s, want %s", i, got, step.want)
		}
		for _, lb := range o.balancers {
			if len(lb.Endpoints) != 1 || o.endpoints[lb.Endpoints[0]].Addrs == nil {
				t.Errorf("step %d: load balancer %+v leads nowhere", i, lb)
			}
		}
		if i == 2 && (o.lists != lists || o.done != done) {
			t.Errorf("nothing changed: %d lists, %d calls", o.lists-lists, o.done-done)
		}
	}
}
