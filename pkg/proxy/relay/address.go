package relay

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// Addresses makes the addresses of Services local to this host, so that the relay can listen on them.
type Addresses interface {
	// Set makes want local, and removes everything else that is ours; it never changes what is not ours. It lists once,
	// compares, and applies the difference: calling it twice changes nothing, and the zero Local removes all our
	// changes. answers reports whether replies come back as want.Answers requires. Errors of single addresses are
	// *AddressError, joined; the rest is applied.
	Set(ctx context.Context, want Local) (answers bool, err error)
	// HoldsPorts reports whether single ports of addresses like this one can be made local. If not, Set makes the whole
	// address local.
	HoldsPorts(addr netip.Addr) bool
	// LeadsAnswers reports whether this host supports Local.Answers at all.
	LeadsAnswers() bool
	// Host lists the host's own addresses without ours, including loopback.
	Host() ([]netip.Addr, error)
	// Changes receives an element whenever another program has changed the host's addresses, until ctx ends. It is only
	// a hint.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Local is what should be local to this host.
type Local struct {
	Addresses []netip.Addr // whole addresses; sorted, without loopback
	// Ports are single ports, sorted; the rest of their addresses stays elsewhere. Sockets at such a port must accept
	// that their address is not local.
	Ports []Port
	// Ranges are the cluster's ranges of service addresses. A whole range may be made local instead of the Addresses in
	// it.
	Ranges []netip.Prefix
	// Added receives each address that the host lacked, on Windows, where a listener survives its address. It may be
	// nil.
	Added func(netip.Addr)
	// Answers makes endpoints' replies to connections with their client's address come back to this host.
	Answers bool
}

// AddressError says why one address could not be added to or removed from the host.
type AddressError struct {
	Addr netip.Addr
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("cannot change service address %s of this host: %v", e.Addr, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// holdsAlone reports whether a front needs only its port: its address is neither the host's nor a cluster IP.
func (r *Relay) holdsAlone(key Port) bool {
	if key.Protocol != v1.ProtocolTCP && key.Protocol != v1.ProtocolUDP {
		return false
	}
	route := r.wanted[key]
	addr := key.Addr.Addr()
	return route != nil && (route.Kind == proxy.ExternalIP || route.Kind == proxy.LoadBalancer) && !r.whole[addr] && !slices.Contains(r.host, addr) && r.cfg.Addresses.HoldsPorts(addr)
}

// shifted reports whether one of these fronts starts or stops needing only its port.
func (r *Relay) shifted(dirty map[Port]struct{}) bool {
	for key := range dirty {
		if _, alone := r.single[key]; alone != r.holdsAlone(key) {
			return true
		}
	}
	return false
}

// local returns what the served fronts need, without what is local anyway.
func (r *Relay) local() (want Local) {
	r.whole, r.single = map[netip.Addr]bool{}, map[Port]struct{}{}
	for key, route := range r.wanted {
		if route.Kind == proxy.ClusterIP {
			r.whole[key.Addr.Addr()] = true
		}
	}
	for key := range r.wanted {
		addr := key.Addr.Addr()
		switch {
		case addr.IsUnspecified() || addr.IsLoopback() || slices.Contains(r.host, addr):
		case r.holdsAlone(key):
			r.single[key] = struct{}{}
			want.Ports = append(want.Ports, key)
		default:
			want.Addresses = append(want.Addresses, addr)
		}
	}
	slices.SortFunc(want.Ports, Port.Compare)
	slices.SortFunc(want.Addresses, netip.Addr.Compare)
	want.Addresses = slices.Compact(want.Addresses)
	return want
}

// setAddresses makes the fronts' addresses local, and warns Services whose endpoints do not see the client's address as
// they should.
func (r *Relay) setAddresses(ctx context.Context, ranges []netip.Prefix) []error {
	want := r.local()
	want.Ranges = ranges
	want.Answers = len(r.hidden) > 0 && r.cfg.Addresses.LeadsAnswers()
	answers, err := r.cfg.Addresses.Set(ctx, want)
	r.ranges, r.addrErrs = slices.Clone(ranges), map[netip.Addr]error{}
	r.shared.keep.Store(want.Answers && answers)
	if !answers {
		reason := ""
		if want.Answers {
			reason = ", since this host has no nft or refuses its rules, which would lead the answers back"
		}
		r.warnHidden(reason)
	}
	return r.sortAddressErrors(err)
}

// noteClients records which of the changed Services need endpoints to see the client's address. It reports whether
// addresses must be set for that: these Services are the first or were the last, or have not been warned.
func (r *Relay) noteClients(want *proxy.Table, changed []proxy.ServiceName) (set bool) {
	before := len(r.hidden) > 0
	for _, name := range changed {
		if !slices.ContainsFunc(want.Of(name), func(route proxy.Route) bool { return route.KeepClient && !r.beside(&route) }) {
			delete(r.hidden, name)
		} else if _, ok := r.hidden[name]; !ok {
			r.hidden[name] = false
			set = set || !r.shared.keep.Load()
		}
	}
	return set || before != (len(r.hidden) > 0)
}

// warnHidden warns each Service once.
func (r *Relay) warnHidden(reason string) {
	for name, warned := range r.hidden {
		if !warned {
			r.hidden[name] = true
			r.shared.warn(name, "ClientAddressHidden", "externalTrafficPolicy Local: traffic stays on this node, but its endpoints see the node's address instead of the client's"+reason)
		}
	}
}
