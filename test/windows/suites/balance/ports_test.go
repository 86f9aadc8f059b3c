package balance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/portblocks"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// tight is an HNS with only as many dynamic ports as Windows has: it refuses when no block is left (kubernetes/website#17930,
// 0x803b0013).
type tight struct {
	*client
	world   *sim.World
	blocks  int
	refused int
}

func (c *tight) CreateLoadBalancer(ctx context.Context, lb hns.LoadBalancer) (hns.ID, error) {
	if !lb.DSR && c.world.HNS.Reserving() >= c.blocks {
		c.refused++
		return hns.ID{}, errors.New("hcnCreateLoadBalancer failed in Win32: The specified port already exists. (0x803b0013)")
	}
	return c.client.CreateLoadBalancer(ctx, lb)
}

// ports reads netsh like the proxy.
func (c *tight) ports(context.Context) (portblocks.Ports, error) {
	script := portblocks.ListDynamic + "\n" + portblocks.ListExcluded
	output, _ := c.world.Netsh.Run([]string{"-f", "script"}, &script)
	ports, err := portblocks.ParseDynamic(output)
	ports.Excluded = portblocks.ParseExcluded(output)
	return ports, err
}

func newTight(t *testing.T, build int) *tight {
	t.Helper()
	w := sim.New(build)
	c := &tight{client: &client{HNS: w.HNS, log: w.Log}, world: w}
	if _, err := c.create("Network", none, bridge); err != nil {
		t.Fatal(err)
	}
	ports, err := c.ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.blocks = ports.Free()
	return c
}

// TestPortsRunOut: without direct server return some 240 load balancers use all blocks of dynamic ports. The proxy refuses the next one before HNS
// does, names its Service and the remedy, and leaves the host ports for its own connections. With fewer Services it serves the rest.
func TestPortsRunOut(t *testing.T) {
	c := newTight(t, 20348)
	b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0", Ports: c.ports})
	want := table(300)
	for range 2 {
		failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil))
		served := c.world.HNS.Reserving()
		if len(rest) > 0 || len(failed) != 300-served || c.refused > 0 || served != c.blocks-portblocks.Kept {
			t.Fatalf("%d of %d blocks taken, %d Services refused, %d by HNS; %v", served, c.blocks, len(failed), c.refused, rest)
		}
		last := failed[len(failed)-1]
		if last.Route.Service.Name != "s0299" || !errors.Is(last, portblocks.ErrNone) || !strings.Contains(last.Error(), "--enable-dsr") {
			t.Errorf("%v", last)
		}
	}
	if err := b.Sync(t.Context(), table(200), nil); err != nil || c.world.HNS.Reserving() != 200 {
		t.Errorf("%d load balancers: %v", c.world.HNS.Reserving(), err)
	}
}

// TestManyServices: 2,000 Services with endpoints, some with node ports and an external address, fit into the dynamic ports on each build if
// direct server return is on.
func TestManyServices(t *testing.T) {
	for _, build := range []int{17763, 20348, 26100} {
		c := newTight(t, build)
		b := hnslb.New(hnslb.Config{Client: c, Network: "cbr0", DSR: true, Ports: c.ports})
		want := table(2000)
		for i := range 100 { // without direct server return, because endpoints are on other nodes
			r := proxy.Route{Service: want.Routes[i*20].Service, Kind: proxy.NodePort, Protocol: v1.ProtocolTCP,
				Front: netip.MustParseAddrPort(fmt.Sprintf("0.0.0.0:%d", 30000+i)), Backends: want.Routes[i*20].Backends}
			want.Routes = append(want.Routes, r)
		}
		slices.SortStableFunc(want.Routes, func(a, b proxy.Route) int { return strings.Compare(a.Service.Name, b.Service.Name) })
		if err := b.Sync(t.Context(), want, nil); err != nil || c.refused > 0 {
			t.Fatalf("%d: %d refused by HNS; %v", build, c.refused, err)
		}
		if got := c.world.HNS.Reserving(); got != 100 {
			t.Errorf("%d: %d load balancers reserve ports, want the 100 node ports", build, got)
		}
	}
}
