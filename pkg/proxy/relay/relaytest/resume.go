package relaytest

import (
	"context"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// busyAddresses calls meanwhile during the comparison with the host.
type busyAddresses struct {
	relay.Addresses
	meanwhile *func()
}

func (a busyAddresses) Set(ctx context.Context, want relay.Local) (bool, error) {
	(*a.meanwhile)()
	return a.Addresses.Set(ctx, want)
}

// Resume: a new relay serves fronts whose addresses are local, as a killed one left them, before it has compared the
// host; an address that is not local does not delay the other fronts.
func Resume(t *testing.T, subject Subject) {
	meanwhile := func() {}
	h := NewHost(t, subject, func(c *relay.Config) { c.Addresses = busyAddresses{c.Addresses, &meanwhile} })
	front, elsewhere := h.Front(0), netip.MustParseAddrPort("192.0.2.1:80")
	endpoint := h.Endpoint(0, v1.ProtocolTCP)
	answered := netip.AddrPort{}
	meanwhile = func() {
		var err error
		if answered, err = Ask(v1.ProtocolTCP, front); err != nil {
			t.Errorf("asked while the host is compared: %v", err)
		}
	}
	h.MustSync(t, Route("here", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint))
	if answered != endpoint {
		t.Errorf("%s answered, want %s", answered, endpoint)
	}
	meanwhile = func() {}
	h.MustSync(t) // after an empty Table, the next Sync is like the first
	fails := v1.ProtocolTCP
	if subject.Leads() {
		fails = v1.ProtocolUDP // a front that needs no socket does not fail without one
	}
	for range 8 { // in any order
		err := h.Sync(t, Route("here", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint), Route("there", proxy.ClusterIP, fails, elsewhere, endpoint))
		failed, rest := proxy.RouteErrors(err)
		if len(failed) != 1 || failed[0].Route.Front != elsewhere || len(rest) > 0 {
			t.Fatalf("with an address that is not local: %v", err)
		}
		if got, err := Ask(v1.ProtocolTCP, front); err != nil || got != endpoint {
			t.Fatalf("beside an address that is not local: %s, %v", got, err)
		}
		h.MustSync(t)
	}
}
