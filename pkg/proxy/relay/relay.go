// Package relay is the back end of the service proxy that works everywhere: it listens on every front of the Table and passes what
// comes to a backend, in this process, with sockets only.
//
//	Table --> front: addresses made local, one socket each --> balancer --> connection or UDP session --> endpoint
//
// Relay.Sync owns the fronts. Their data is carried by a plane: on Linux a few loops, each with a thread and an epoll of its own, to which
// every connection and session belongs from its first packet to its last; elsewhere goroutines. Both only read what a front publishes.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

// Config is what a Relay needs.
type Config struct {
	Addresses Addresses
	// NodePorts limits the host's addresses on which node ports are served; empty: all of them, loopback included.
	NodePorts []netip.Prefix
	// Healthy is what health check node ports say of the proxy itself.
	Healthy func() bool
	// UDPIdle is how long a UDP session lives after its last packet; 0: 2 minutes. Short exchanges, such as DNS, live 10 s at most.
	UDPIdle time.Duration
	// ClientShare is the part of each limit, in percent, that one client's address may have: connections and sessions of a front and of all, and
	// source ports towards one endpoint; 0: 50.
	ClientShare int
	// SessionPorts is the part of this host's UDP source ports, in percent, that sessions may have; 0: 50. Where two Relays run on a host they share.
	SessionPorts int
	// Warn is told what users should know of a Service that is served worse than it could be: the reason in one word, and a sentence. nil:
	// nobody is told.
	Warn  func(service proxy.ServiceName, reason, message string)
	Clock clock.PassiveClock
}

const (
	defaultUDPIdle = 2 * time.Minute
	shortUDPIdle   = 10 * time.Second
)

// frontKey is one front, whichever Service has it.
type frontKey struct {
	protocol v1.Protocol
	addr     netip.AddrPort // unspecified address: all of the host's (node port)
}

func keyOf(r *proxy.Route) frontKey { return frontKey{r.Protocol, r.Front} }

// Relay implements proxy.Backend.
type Relay struct {
	cfg Config

	mu        sync.Mutex
	closed    bool
	wanted    map[frontKey]*proxy.Route
	byService map[proxy.ServiceName][]frontKey
	fronts    map[frontKey]*front
	own       ownSockets
	keep      atomic.Bool                // connections may carry their client's address
	keepers   map[proxy.ServiceName]bool // Services that ask for it; true: they were told that it cannot be
	plane     plane
	counts    *counts
	refs      map[netip.Addr]int // how many fronts use an address
	addrErrs  map[netip.Addr]error
	held      map[frontKey]struct{} // fronts whose ports were taken alone
	whole     map[netip.Addr]bool   // addresses that are ClusterIPs, whatever else they are
	host      []netip.Addr          // the host's own addresses as last listed
	health    *healthChecks
}

// New returns a Relay that serves nothing yet and has not touched the host.
func New(cfg Config) *Relay { return newRelay(cfg, newPlane()) }

func newRelay(cfg Config, p plane) *Relay {
	cfg.UDPIdle = cmp.Or(cfg.UDPIdle, defaultUDPIdle)
	r := &Relay{cfg: cfg, wanted: map[frontKey]*proxy.Route{}, byService: map[proxy.ServiceName][]frontKey{}, fronts: map[frontKey]*front{},
		plane: p, keepers: map[proxy.ServiceName]bool{}, own: ownSockets{keys: map[frontKey]struct{}{}}, refs: map[netip.Addr]int{}, health: newHealthChecks(cfg.Healthy)}
	r.counts = newCounts(&r.cfg)
	return r
}

// HidesClients says whether endpoints see this host's address instead of a client's in any case: a relay's connections to them are its own. Where
// they may carry the client's address, Services that ask for it and do not get it are warned.
func (r *Relay) HidesClients() bool {
	k, ok := r.cfg.Addresses.(clientKeeper)
	return !ok || !k.CanKeepClients()
}

// askToKeep tells the Addresses whether a Service asks that endpoints see the client's address, and says whether that is new.
func (r *Relay) askToKeep(want *proxy.Table, changed []proxy.ServiceName) bool {
	k, ok := r.cfg.Addresses.(clientKeeper)
	if !ok || !k.CanKeepClients() {
		return false
	}
	before := len(r.keepers) > 0
	for _, name := range changed {
		if !slices.ContainsFunc(want.Of(name), func(route proxy.Route) bool { return route.KeepClient }) {
			delete(r.keepers, name)
		} else if _, ok := r.keepers[name]; !ok {
			r.keepers[name] = false
		}
	}
	k.KeepClients(len(r.keepers) > 0)
	return before != (len(r.keepers) > 0)
}

// noteKept takes what has come of it, and warns Services once.
func (r *Relay) noteKept() {
	k, ok := r.cfg.Addresses.(clientKeeper)
	if !ok || len(r.keepers) == 0 {
		return
	}
	kept := k.KeepsClients()
	r.keep.Store(kept)
	for name, told := range r.keepers {
		if !kept && !told && r.cfg.Warn != nil {
			r.keepers[name] = true
			go r.cfg.Warn(name, "ClientAddressHidden", "externalTrafficPolicy Local: traffic stays on this node, but its endpoints see the node's address instead of the client's, since this host has no nft or refuses its rules, which would lead the answers back")
		}
	}
}

// Sync implements proxy.Backend. Established TCP connections outlive any change but the end of their front; see front.set.
func (r *Relay) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("cannot sync relay: it is closed")
	}
	var errs []error
	whole := changed == nil
	if whole {
		host, err := r.cfg.Addresses.Host()
		if err == nil {
			r.host = host
		} else {
			errs = append(errs, err)
		}
		changed = r.names(want)
		r.plane.check()
	}
	dirty, moved := r.take(want, changed)
	if whole {
		for key := range r.fronts {
			dirty[key] = struct{}{}
		}
	}
	for key := range dirty {
		if r.wanted[key] == nil && r.fronts[key] != nil {
			r.fronts[key].close() // before its address goes, so that clients are told
			delete(r.fronts, key)
		}
	}
	if len(r.fronts) == 0 {
		r.resume(dirty)
	}
	if asked := r.askToKeep(want, changed); whole || moved || asked || r.shifted(dirty) || len(r.addrErrs) > 0 {
		errs = append(errs, r.setAddresses(ctx)...)
	}
	r.noteKept()
	errs = append(errs, r.serve(dirty)...)
	errs = append(errs, r.health.sync(want, changed)...)
	return errors.Join(errs...)
}

// names are the Services of the Table and those that are served now.
func (r *Relay) names(want *proxy.Table) []proxy.ServiceName {
	names := map[proxy.ServiceName]struct{}{}
	for i := range want.Routes {
		names[want.Routes[i].Service.ServiceName] = struct{}{}
	}
	for _, h := range want.HealthChecks {
		names[h.Service] = struct{}{}
	}
	for name := range r.byService {
		names[name] = struct{}{}
	}
	for name := range r.health.servers {
		names[name] = struct{}{}
	}
	return slices.Collect(maps.Keys(names))
}

// take takes the Routes of the changed Services. It returns the fronts to look at and whether an address came or went. A front may pass from one
// of them to another.
func (r *Relay) take(want *proxy.Table, changed []proxy.ServiceName) (dirty map[frontKey]struct{}, moved bool) {
	dirty = map[frontKey]struct{}{}
	used := map[netip.Addr]bool{} // of the addresses in question, whether they had a front before
	refer := func(key frontKey, by int) {
		addr := key.addr.Addr()
		if addr.IsUnspecified() || addr.IsLoopback() {
			return
		}
		if _, ok := used[addr]; !ok {
			used[addr] = r.refs[addr] > 0
		}
		if r.refs[addr] += by; r.refs[addr] == 0 {
			delete(r.refs, addr)
		}
	}
	for _, name := range changed {
		for _, key := range r.byService[name] {
			if route := r.wanted[key]; route != nil && route.Service.ServiceName == name {
				delete(r.wanted, key)
				refer(key, -1)
			}
			dirty[key] = struct{}{}
		}
		delete(r.byService, name)
	}
	for _, name := range changed {
		routes := want.Of(name)
		for i := range routes {
			key := keyOf(&routes[i])
			dirty[key] = struct{}{}
			if r.wanted[key] == nil {
				refer(key, 1)
			}
			route := routes[i] // of its own: the Table changes in place
			r.wanted[key] = &route
			r.byService[name] = append(r.byService[name], key)
		}
	}
	for addr, before := range used {
		moved = moved || before != (r.refs[addr] > 0)
	}
	return dirty, moved
}

// setAddresses makes the fronts' addresses or ports local, but those that are so anyway.
func (r *Relay) setAddresses(ctx context.Context) []error {
	err := r.cfg.Addresses.Set(ctx, r.holdPorts())
	r.addrErrs = map[netip.Addr]error{}
	return r.sortAddressErrors(err)
}

// sortAddressErrors keeps the errors of single addresses for their Routes and returns the others.
func (r *Relay) sortAddressErrors(err error) []error {
	var one *AddressError
	switch e := err.(type) {
	case nil:
		return nil
	case interface{ Unwrap() []error }:
		var rest []error
		for _, part := range e.Unwrap() {
			rest = append(rest, r.sortAddressErrors(part)...)
		}
		return rest
	case *AddressError:
		one = e
	default:
		return []error{err}
	}
	r.addrErrs[one.Addr] = one
	return nil
}

// serve brings the fronts to their Routes and returns a RouteError for each that is not served.
func (r *Relay) serve(dirty map[frontKey]struct{}) (errs []error) {
	for key := range dirty {
		route := r.wanted[key]
		if route == nil {
			continue
		}
		if err := r.serveOne(key, route); err != nil {
			errs = append(errs, &proxy.RouteError{Route: *route, Err: err})
		}
	}
	return errs
}

func (r *Relay) serveOne(key frontKey, route *proxy.Route) error {
	if key.protocol != v1.ProtocolTCP && key.protocol != v1.ProtocolUDP {
		return fmt.Errorf("protocol %s cannot be relayed: want TCP or UDP", key.protocol)
	}
	f := r.fronts[key]
	if f == nil {
		f = newFront(&r.cfg, &r.own, &r.keep, r.counts, r.plane, key.protocol)
		r.fronts[key] = f
	}
	err := f.set(route, r.places(key))
	return cmp.Or(r.addrErrs[key.addr.Addr()], err) // an address may fail although IPv6 lets us listen on it
}

// resume opens what it can before the host is compared, which takes long on a busy host: after a proxy that was killed the addresses are still local,
// and guarded, and clients wait. Where they are not, the first socket fails, and serve opens the rest in its turn; what needs no socket does not fail.
// What depends on more waits for that.
func (r *Relay) resume(dirty map[frontKey]struct{}) {
	for key := range dirty {
		route := r.wanted[key]
		if route == nil || route.KeepClient || key.protocol != v1.ProtocolTCP && key.protocol != v1.ProtocolUDP {
			continue
		}
		f := newFront(&r.cfg, &r.own, &r.keep, r.counts, r.plane, key.protocol)
		r.fronts[key] = f
		if err := f.set(route, r.places(key)); err != nil {
			return
		}
	}
}

// places are where a front listens: at its own address, or for a node port all of the host's that --nodeport-addresses allows. Link-local ones are
// left out: they mean nothing without an interface.
func (r *Relay) places(key frontKey) []place {
	if addr := key.addr.Addr(); !addr.IsUnspecified() {
		return []place{{key.addr, len(r.host) > 0 && !slices.Contains(r.host, addr) && r.addrErrs[addr] == nil, r.single(key)}}
	}
	var out []place
	for _, addr := range r.host {
		if addr.Is4() != key.addr.Addr().Is4() || addr.IsLinkLocalUnicast() {
			continue
		}
		if len(r.cfg.NodePorts) == 0 || slices.ContainsFunc(r.cfg.NodePorts, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			out = append(out, place{addr: netip.AddrPortFrom(addr, key.addr.Port())})
		}
	}
	return out
}

// Close stops serving and ends every connection. The addresses stay on the host, for the next proxy to find.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for key, f := range r.fronts {
		f.close()
		delete(r.fronts, key)
	}
	r.plane.close()
	r.health.close()
}
