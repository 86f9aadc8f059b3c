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

// newTight returns such an HNS with the pods' network, a bridge or an overlay, and the settings of a proxy on it.
func newTight(t *testing.T, build int, overlay bool) (*tight, hnslb.Config) {
	t.Helper()
	w := sim.New(build)
	w.Address = netip.MustParseAddr(nodeIP)
	c := &tight{client: &client{HNS: w.HNS, log: w.Log}, world: w}
	settings, name := bridge, "cbr0"
	if overlay {
		settings, name = overlaySettings, "winkube.4096"
	}
	if _, err := c.create("Network", none, settings); err != nil {
		t.Fatal(err)
	}
	ports, err := c.ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.blocks = ports.Free()
	node := func() (netip.Addr, string) { return w.Address, nodeMAC }
	return c, hnslb.Config{Client: c, Network: name, Overlay: overlay, Build: build, Node: node, Ports: c.ports}
}

// TestPortsRunOut: without direct server return some 240 load balancers use all blocks of dynamic ports. The proxy refuses the next one before HNS
// does, names its Service and the remedy, and leaves the host ports for its own connections. With fewer Services it serves the rest. Overlays have load
// balancers without a flag.
func TestPortsRunOut(t *testing.T) {
	for _, overlay := range []bool{false, true} {
		c, cfg := newTight(t, 20348, overlay)
		b := hnslb.New(cfg)
		want := table(300)
		for range 2 {
			failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil))
			served := c.world.HNS.Reserving()
			if len(rest) > 0 || len(failed) != 300-served || c.refused > 0 || served != c.blocks-portblocks.Kept {
				t.Fatalf("overlay %t: %d of %d blocks taken, %d Services refused, %d by HNS; %v", overlay, served, c.blocks, len(failed), c.refused, rest)
			}
			last := failed[len(failed)-1]
			if last.Route.Service.Name != "s0299" || !errors.Is(last, portblocks.ErrNone) || !strings.Contains(last.Error(), "--enable-dsr") {
				t.Errorf("overlay %t: %v", overlay, last)
			}
		}
		if err := b.Sync(t.Context(), table(200), nil); err != nil || c.world.HNS.Reserving() != 200 {
			t.Errorf("overlay %t: %d load balancers: %v", overlay, c.world.HNS.Reserving(), err)
		}
	}
}

// TestManyServices: 2,000 Services with endpoints, some with node ports and an external address, fit into the dynamic ports on each build if
// direct server return is on.
func TestManyServices(t *testing.T) {
	for _, host := range []struct {
		build   int
		overlay bool
	}{{17763, false}, {20348, true}, {26100, false}} {
		c, cfg := newTight(t, host.build, host.overlay)
		cfg.DSR = true
		want := table(2000)
		for i := range 100 { // without direct server return, because endpoints are on other nodes
			r := proxy.Route{Service: want.Routes[i*20].Service, Kind: proxy.NodePort, Protocol: v1.ProtocolTCP,
				Front: netip.MustParseAddrPort(fmt.Sprintf("0.0.0.0:%d", 30000+i)), Backends: want.Routes[i*20].Backends}
			want.Routes = append(want.Routes, r)
		}
		slices.SortStableFunc(want.Routes, func(a, b proxy.Route) int { return strings.Compare(a.Service.Name, b.Service.Name) })
		if err := hnslb.New(cfg).Sync(t.Context(), want, nil); err != nil || c.refused > 0 {
			t.Fatalf("%+v: %d refused by HNS; %v", host, c.refused, err)
		}
		if got := c.world.HNS.Reserving(); got != 100 {
			t.Errorf("%+v: %d load balancers reserve ports, want the 100 node ports", host, got)
		}
	}
}
