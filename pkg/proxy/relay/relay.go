// Package relay is the back end of the service proxy that works everywhere: it listens on every front of the Table and
// forwards traffic to an endpoint, in this process, with sockets only.
//
//	Table --> Front: addresses made local, one socket each --> choose --> limits --> connection or UDP session --> endpoint
//
// Relay.Sync owns the fronts. A Plane moves their data. The program chooses it: the portable one here with goroutines,
// or that of package epoll on Linux. Both use package choose to select an endpoint, and package limits to find out
// whether there is room.
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
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// Config is the configuration of a Relay.
type Config struct {
	Addresses Addresses
	// NodePorts limits the host's addresses that serve node ports; empty: all of them, including loopback.
	NodePorts []netip.Prefix
	// Doors returns the host's addresses that serve node ports, instead of NodePorts; nil: NodePorts decides. It is asked when everything
	// is compared.
	Doors func() ([]netip.Addr, error)
	// SCTPBeside says that another back end serves SCTP on this host. The relay then only makes ClusterIPs local for it.
	SCTPBeside bool
	// UDPIdle is how long a UDP session lives after its last packet; 0: 2 minutes. Short exchanges, such as DNS, live
	// at most 10 s.
	UDPIdle time.Duration
	// Capacity is the resources that all connections share; zero: those of this host. The two fields below set its
	// Share and UDP.
	Capacity limits.Capacity
	// ClientShare is the percentage of each limit that one client address may use: of connections and sessions, per
	// front and in total, and of source ports towards one endpoint; 0: 50.
	ClientShare int
	// SessionPorts is the percentage of this host's UDP source ports that sessions may use; 0: 50. Two Relays on one
	// host share the ports.
	SessionPorts int
	// Warn records an Event on a Service that is not served as well as possible; nil: no Events.
	Warn  limits.Warn
	Clock clock.PassiveClock
}

const (
	defaultUDPIdle = 2 * time.Minute
	shortUDPIdle   = 10 * time.Second
)

// Port is one port of an address: a front, whichever Service has it.
type Port struct {
	Protocol v1.Protocol
	Addr     netip.AddrPort // unspecified address: all addresses of the host (node port)
}

// Compare orders Ports by address.
func (p Port) Compare(o Port) int {
	return cmp.Or(p.Addr.Compare(o.Addr), cmp.Compare(p.Protocol, o.Protocol))
}

func portOf(r *proxy.Route) Port { return Port{r.Protocol, r.Front} }

// Relay implements proxy.Backend.
type Relay struct {
	cfg    Config
	shared *Shared
	plane  Plane

	mu        sync.Mutex
	closed    bool
	wanted    map[Port]*proxy.Route
	byService map[proxy.ServiceName][]Port
	fronts    map[Port]*Front
	hidden    map[proxy.ServiceName]bool // Services whose endpoints should see the client's address; true: warned that they do not
	refs      map[netip.Addr]int         // number of fronts by address
	addrErrs  map[netip.Addr]error
	single    map[Port]struct{}   // fronts for which only their port was made local
	whole     map[netip.Addr]bool // addresses that are ClusterIPs, whatever other fronts they have
	host      []netip.Addr        // the host's own addresses as last listed
	doors     []netip.Addr        // as Config.Doors last returned them
	ranges    []netip.Prefix      // of service addresses, from the last Table
}

// New returns a Relay on a Plane that serves nothing yet and has not changed the host.
func New(plane NewPlane, cfg Config) *Relay {
	shared := newShared(&cfg)
	return &Relay{cfg: cfg, shared: shared, plane: plane(shared), wanted: map[Port]*proxy.Route{}, byService: map[proxy.ServiceName][]Port{},
		fronts: map[Port]*Front{}, hidden: map[proxy.ServiceName]bool{}, refs: map[netip.Addr]int{}}
}

// Sync implements proxy.Backend. Established TCP connections survive all changes except the end of their front; see
// front.set.
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
		if r.cfg.Doors != nil {
			doors, err := r.cfg.Doors()
			if err == nil {
				r.doors = doors
			}
			errs = append(errs, err)
		}
		changed = r.names(want)
		r.plane.Check()
	}
	dirty, moved := r.take(want, changed)
	moved = moved || !slices.Equal(r.ranges, want.ServiceRanges)
	r.setNear(want.PodRanges, dirty)
	if whole {
		for key := range r.fronts {
			dirty[key] = struct{}{}
		}
	}
	for key := range dirty {
		if r.wanted[key] == nil && r.fronts[key] != nil {
			r.fronts[key].close() // before its address is removed, so that clients get a reset
			delete(r.fronts, key)
		}
	}
	if len(r.fronts) == 0 {
		r.resume(dirty)
	}
	if asked := r.noteClients(want, changed); whole || moved || asked || r.shifted(dirty) || len(r.addrErrs) > 0 {
		errs = append(errs, r.setAddresses(ctx, want.ServiceRanges)...)
	}
	return errors.Join(append(errs, r.serve(dirty)...)...)
}

// setNear records the clients on this node. If they changed, the fronts that treat them differently are dirty.
func (r *Relay) setNear(pods []netip.Prefix, dirty map[Port]struct{}) {
	near := append([]netip.Prefix{loopback}, pods...)
	for _, addr := range r.host {
		near = append(near, netip.PrefixFrom(addr.WithZone(""), addr.BitLen()))
	}
	if !r.shared.Near.Set(near) {
		return
	}
	for key, route := range r.wanted {
		if len(route.Near) > 0 {
			dirty[key] = struct{}{}
		}
	}
}

// loopback are the addresses from which only this host's programs connect.
var loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)

// names returns the Services of the Table and those that are served now.
func (r *Relay) names(want *proxy.Table) []proxy.ServiceName {
	names := map[proxy.ServiceName]struct{}{}
	for i := range want.Routes {
		names[want.Routes[i].Service.ServiceName] = struct{}{}
	}
	for name := range r.byService {
		names[name] = struct{}{}
	}
	return slices.Collect(maps.Keys(names))
}

// take updates the Routes of the changed Services. It returns the fronts to compare and whether an address was added or
// removed. A front may move from one of them to another.
func (r *Relay) take(want *proxy.Table, changed []proxy.ServiceName) (dirty map[Port]struct{}, moved bool) {
	dirty = map[Port]struct{}{}
	used := map[netip.Addr]bool{} // affected addresses; the value says whether they had a front before
	refer := func(key Port, by int) {
		addr := key.Addr.Addr()
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
			if r.beside(&routes[i]) && routes[i].Kind != proxy.ClusterIP {
				continue
			}
			key := portOf(&routes[i])
			dirty[key] = struct{}{}
			if r.wanted[key] == nil {
				refer(key, 1)
			}
			route := routes[i] // a copy, because the Table changes in place
			r.wanted[key] = &route
			r.byService[name] = append(r.byService[name], key)
		}
	}
	for addr, before := range used {
		moved = moved || before != (r.refs[addr] > 0)
	}
	return dirty, moved
}

// sortAddressErrors stores the errors of single addresses for their Routes and returns the others.
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
func (r *Relay) serve(dirty map[Port]struct{}) (errs []error) {
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

// beside reports whether another back end serves a Route.
func (r *Relay) beside(route *proxy.Route) bool {
	return r.cfg.SCTPBeside && route.Protocol == v1.ProtocolSCTP
}

func (r *Relay) serveOne(key Port, route *proxy.Route) error {
	if r.beside(route) {
		return r.addrErrs[key.Addr.Addr()]
	}
	if key.Protocol != v1.ProtocolTCP && key.Protocol != v1.ProtocolUDP {
		return fmt.Errorf("protocol %s cannot be relayed: want TCP or UDP", key.Protocol)
	}
	f := r.fronts[key]
	if f == nil {
		f = newFront(r.shared, r.plane, key.Protocol)
		r.fronts[key] = f
	}
	err := f.set(route, r.places(key))
	return cmp.Or(r.addrErrs[key.Addr.Addr()], err) // an address may fail although IPv6 lets us listen on it
}

// resume opens what it can before the comparison with the host, which takes long on a busy host: after a proxy was
// killed, the addresses are still local and guarded, and clients wait. If they are not local, the first socket fails,
// and serve opens the rest later; fronts without a socket do not fail. resume skips fronts that need more than local
// addresses.
func (r *Relay) resume(dirty map[Port]struct{}) {
	for key := range dirty {
		route := r.wanted[key]
		if route == nil || route.KeepClient || key.Protocol != v1.ProtocolTCP && key.Protocol != v1.ProtocolUDP {
			continue
		}
		f := newFront(r.shared, r.plane, key.Protocol)
		r.fronts[key] = f
		if err := f.set(route, r.places(key)); err != nil {
			return
		}
	}
}

// places returns where a front listens: at its own address, or for a node port at all of the host's addresses that
// --nodeport-addresses allows. It skips link-local ones, which are ambiguous without an interface.
func (r *Relay) places(key Port) []Place {
	if addr := key.Addr.Addr(); !addr.IsUnspecified() {
		return []Place{{key.Addr, len(r.host) > 0 && !slices.Contains(r.host, addr) && r.addrErrs[addr] == nil, r.holdsAlone(key)}}
	}
	var out []Place
	for _, addr := range r.host {
		if addr.Is4() != key.Addr.Addr().Is4() || addr.IsLinkLocalUnicast() {
			continue
		}
		if r.opens(addr) {
			out = append(out, Place{Addr: netip.AddrPortFrom(addr, key.Addr.Port())})
		}
	}
	return out
}

// opens says whether an address of the host serves node ports.
func (r *Relay) opens(addr netip.Addr) bool {
	if r.cfg.Doors != nil {
		return slices.Contains(r.doors, addr)
	}
	return len(r.cfg.NodePorts) == 0 || slices.ContainsFunc(r.cfg.NodePorts, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Close stops serving and ends every connection. The addresses stay on the host for the next proxy.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for key, f := range r.fronts {
		f.close()
		delete(r.fronts, key)
	}
	r.plane.Close()
}
