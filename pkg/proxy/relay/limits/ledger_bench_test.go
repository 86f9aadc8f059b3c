package limits

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

type noRoute struct{}

func (noRoute) Route() *proxy.Route { return &proxy.Route{} }

// BenchmarkLedger measures the cost of the limits for a connection: it enters, gets an endpoint, is established and
// leaves, with 1,000 others present.
func BenchmarkLedger(b *testing.B) {
	l := NewLedger(Capacity{Files: 1 << 20, Ports: 28232}, func(proxy.ServiceName, string, string) {}, clock.RealClock{})
	f := NewFront(v1.ProtocolTCP, noRoute{})
	endpoint := netip.MustParseAddrPort("10.0.0.1:80")
	visit := func(client netip.Addr, m *Member) {
		_, in := l.Enter(f, client, m)
		_, led := l.Connect(f, client, m, endpoint)
		if !in || !led {
			b.Fatal("refused")
		}
		l.Established(f, m)
	}
	for n := range 1000 {
		g := &ghost{}
		g.member.Occupant = g
		visit(addrOfClient(n%100), &g.member)
	}
	g := &ghost{}
	g.member.Occupant = g
	clients := [4]netip.Addr{addrOfClient(1), addrOfClient(2), addrOfClient(5000), addrOfClient(5001)}
	n := 0
	for b.Loop() {
		n++
		visit(clients[n%4], &g.member)
		l.Leave(f, &g.member)
	}
}
