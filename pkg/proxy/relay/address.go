package relay

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// Addresses makes the addresses of services local to this host, so that they can be listened on.
type Addresses interface {
	// Set makes the host hold want, and of what is ours nothing else; what is not ours is never touched. It lists once, compares, and applies the
	// difference: calling it twice changes nothing, and the zero Local removes every trace. answers says whether answers come back as want.Answers
	// asks. Errors of single addresses are *AddressError, joined; the rest is applied.
	Set(ctx context.Context, want Local) (answers bool, err error)
	// HoldsPorts says whether single ports can be held of addresses like this one. If not, Set holds the address as a whole.
	HoldsPorts(addr netip.Addr) bool
	// LeadsAnswers says whether Local.Answers can be had at all on this host.
	LeadsAnswers() bool
	// Host lists the addresses that the host has beside ours, loopback ones included.
	Host() ([]netip.Addr, error)
	// Changes has an element whenever another program has changed the host's addresses, until ctx ends. It is only a hint.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// Local is what should be local to this host.
type Local struct {
	Addresses []netip.Addr // as a whole; sorted, without loopback
	// Ports are single ports, sorted, the rest of whose addresses stays where it is. Sockets at such a port must not mind that their address is not local.
	Ports []Port
	// Ranges are those from which the cluster takes service addresses. They may be held as a whole instead of the Addresses in them.
	Ranges []netip.Prefix
	// Answers has endpoints' answers to connections that carry their client's address come back to this host.
	Answers bool
}

// AddressError says why one address could not be brought to, or taken from, the host.
type AddressError struct {
	Addr netip.Addr
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("cannot change service address %s of this host: %v", e.Addr, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// holdsAlone says whether a front takes its port alone: its address is neither the host's nor that of a Service.
func (r *Relay) holdsAlone(key Port) bool {
	if key.Protocol != v1.ProtocolTCP && key.Protocol != v1.ProtocolUDP {
		return false
	}
	route := r.wanted[key]
	addr := key.Addr.Addr()
	return route != nil && (route.Kind == proxy.ExternalIP || route.Kind == proxy.LoadBalancer) && !r.whole[addr] && !slices.Contains(r.host, addr) && r.cfg.Addresses.HoldsPorts(addr)
}

// shifted says whether one of these fronts begins or ends to take its port alone.
func (r *Relay) shifted(dirty map[Port]struct{}) bool {
	for key := range dirty {
		if _, alone := r.single[key]; alone != r.holdsAlone(key) {
			return true
		}
	}
	return false
}

// local is what the fronts that are served need, apart from what is local anyway.
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

// setAddresses has the host hold what the fronts need, and warns Services whose endpoints do not see the client's address as they should.
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

// noteClients notes which of the changed Services ask that endpoints see the client's address, and says whether addresses must be set for that: they
// are the first, or were the last, or have not been warned.
func (r *Relay) noteClients(want *proxy.Table, changed []proxy.ServiceName) (set bool) {
	before := len(r.hidden) > 0
	for _, name := range changed {
		if !slices.ContainsFunc(want.Of(name), func(route proxy.Route) bool { return route.KeepClient }) {
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
