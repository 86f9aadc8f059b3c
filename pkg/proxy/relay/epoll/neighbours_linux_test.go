package epoll

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// neighbours are hosts of one network, with a relay on one of them.
type neighbours struct {
	*nstest.Neighbours
	stop func() // ends the relay
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	return &neighbours{Neighbours: nstest.NewNeighbours(t)}
}

// here starts a relay whose loops are also in the test's namespace; its endpoints say "relay".
func (n *neighbours) here(t *testing.T, make func(*relay.Shared) *plane, a relay.Addresses) *relay.Relay {
	t.Helper()
	var p *plane
	r := relay.New(func(s *relay.Shared) relay.Plane { p = make(s); return p }, relay.Config{Addresses: a, UDPIdle: 5 * time.Second, Clock: clock.RealClock{}})
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	p.each(func(*loop) { _ = netns.Set(n.Own) })
	n.stop = func() {
		p.each(func(*loop) { _ = netns.Set(n.Outside) }) // other code uses these threads after Close
		r.Close()
	}
	t.Cleanup(n.stop)
	return r
}

// frontRoutes returns Routes for both protocols of the fronts at port 80.
func frontRoutes(endpoint ...netip.AddrPort) []proxy.Route {
	var out []proxy.Route
	for i, addr := range []string{nstest.Taken4, nstest.Taken6, nstest.Vacant4} {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			kind := []proxy.Kind{proxy.ExternalIP, proxy.LoadBalancer}[i%2]
			out = append(out, relaytest.Route(fmt.Sprintf("s%d-%s", i, strings.ToLower(string(protocol))), kind, protocol, netip.AddrPortFrom(netip.MustParseAddr(addr), 80), endpoint...))
		}
	}
	return out
}

func mustServe(t *testing.T, r *relay.Relay, routes ...proxy.Route) {
	t.Helper()
	slices.SortStableFunc(routes, func(a, b proxy.Route) int { return strings.Compare(a.Service.Name, b.Service.Name) })
	if err := r.Sync(t.Context(), &proxy.Table{Routes: routes}, nil); err != nil {
		t.Fatal(err)
	}
}

func testPlanes(t *testing.T, test func(t *testing.T, newPlane func(*relay.Shared) *plane)) {
	t.Run("by lookup", func(t *testing.T) {
		needsLookup(t)
		test(t, withLookup)
	})
	t.Run("by sockets", func(t *testing.T) { test(t, withoutLookup) })
}

func speaking(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0") // for a free port
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	nstest.Speak(t, "relay", at)
	return netip.MustParseAddrPort(at)
}
