package relay

import (
	"context"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// busyAddresses calls somebody while the host is compared.
type busyAddresses struct {
	Addresses
	meanwhile func()
}

func (a busyAddresses) Set(ctx context.Context, want []netip.Addr) error {
	a.meanwhile()
	return a.Addresses.Set(ctx, want)
}

// TestResume: a new relay serves fronts whose addresses are local, as a killed one left them, before it has compared the host; one that is not does
// not keep the others from being served.
func TestResume(t *testing.T) {
	h := newTestHost(t)
	front, elsewhere := h.Front(0), netip.MustParseAddrPort("192.0.2.1:80")
	endpoint := h.Endpoint(0, v1.ProtocolTCP)
	answered := netip.AddrPort{}
	h.relay.cfg.Addresses = busyAddresses{h.addresses, func() {
		var err error
		if answered, err = ask(v1.ProtocolTCP, front); err != nil {
			t.Errorf("asked while the host is compared: %v", err)
		}
	}}
	h.mustSync(t, route("here", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint))
	if answered != endpoint {
		t.Errorf("%s answered, want %s", answered, endpoint)
	}
	h.relay.cfg.Addresses = h.addresses
	h.mustSync(t) // an empty Table is begun from like a start
	fails := v1.ProtocolTCP
	if h.leads() {
		fails = v1.ProtocolUDP // a front that needs no socket does not fail for want of one
	}
	for range 8 { // in whatever order
		err := h.sync(t, route("here", proxy.ClusterIP, v1.ProtocolTCP, front, endpoint), route("there", proxy.ClusterIP, fails, elsewhere, endpoint))
		failed, rest := proxy.RouteErrors(err)
		if len(failed) != 1 || failed[0].Route.Front != elsewhere || len(rest) > 0 {
			t.Fatalf("with an address that is not local: %v", err)
		}
		if got, err := ask(v1.ProtocolTCP, front); err != nil || got != endpoint {
			t.Fatalf("beside an address that is not local: %s, %v", got, err)
		}
		h.mustSync(t)
	}
}
