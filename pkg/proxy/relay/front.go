package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// front is one front of the Table as it is served: its sockets, one for each address, and what came in through them.
//
//	set(route, places) ... set ... --> close
//
// Relay.Sync calls set and close; what carries the data reads cfg, own, protocol, route and balancer.
type front struct {
	cfg      *Config
	own      *ownSockets
	keep     *atomic.Bool // connections may carry their client's address
	counts   *counts
	protocol v1.Protocol
	balancer *balancer
	route    atomic.Pointer[proxy.Route]
	sockets  []listening // of Sync only; mostly one, for which a map would be large
	carrier  carrier
	pressure pressure
	tab      *tab // what came in, for the limits
}

// plane makes carriers: loops of the kernel's events on Linux, goroutines elsewhere.
type plane interface {
	carry(f *front) carrier
	// check mends what others may have taken away.
	check()
	close() // after all of its carriers
}

// carrier moves the data of one front. Sync calls it, one call at a time.
type carrier interface {
	// listen opens a socket, which is silent from the start if it is to be.
	listen(at place, silent bool) (socket, error)
	// changed says that the front has another Route: who waits for an endpoint may have one now, and links to endpoints that are not in
	// it any more are told so. UDP sessions end at once; TCP connections go on as long as the endpoint is alive.
	changed()
	// open is the number of connections and sessions. It may be called at any time.
	open() int
	// close ends everything that came in, telling both sides, and returns when nothing of it is left. The sockets are closed already.
	close()
}

// socket is what listens on one address of a front.
type socket interface {
	close() // stops listening; returns when nothing new can come in
}

// silencer is a socket that can leave whatever comes to it without an answer.
type silencer interface{ silence(on bool) error }

// place is where a front listens.
type place struct {
	addr netip.AddrPort
	ours bool // the address is the proxy's, not the host's: no program of the host means it by listening on all addresses
	port bool // only this port is the proxy's, and the address is not local
}

// listening is a socket and where it listens.
type listening struct {
	place
	socket socket
	silent bool
}

// ownSockets are all sockets on which the relay listens, by frontKey. An endpoint that is one of them would have the relay talk to itself
// without end.
type ownSockets struct {
	mu   sync.RWMutex
	keys map[frontKey]struct{}
}

func (o *ownSockets) has(protocol v1.Protocol, addr netip.AddrPort) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	_, ok := o.keys[frontKey{protocol, addr}]
	return ok
}

func (o *ownSockets) add(key frontKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys[key] = struct{}{}
}

func (o *ownSockets) remove(key frontKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.keys, key)
}

var (
	errOwnFront   = errors.New("the endpoint is a front of a Service on this node")
	errNoEndpoint = errors.New("there is no endpoint")
)

func newFront(cfg *Config, own *ownSockets, keep *atomic.Bool, n *counts, p plane, protocol v1.Protocol) *front {
	f := &front{cfg: cfg, own: own, keep: keep, counts: n, protocol: protocol, balancer: newBalancer(cfg.Clock, &n.ledger.sticky)}
	f.tab = newTab(f)
	f.carrier = p.carry(f)
	return f
}

// set serves route on places. Sockets whose place stays are kept, with their backlog and connections. A Route without backends has no
// sockets, so that the kernel itself refuses (reset, or port unreachable), unless it drops: then they are silent. The kernel sends nothing from an
// address that is not local: at such a one rules of the guard refuse TCP, and the carrier UDP. Connections to an endpoint that is not in the Route any
// more are told so. route is not changed any more.
func (f *front) set(route *proxy.Route, places []place) error {
	before := f.route.Load()
	if before == nil || !before.Equal(route) {
		f.balancer.set(route)
		f.route.Store(route)
		f.carrier.changed()
	} else {
		f.balancer.sweep()
	}
	silent := len(route.Backends) == 0 && route.Drop
	if len(route.Backends) == 0 && !route.Drop {
		places = slices.DeleteFunc(places, func(at place) bool { return !at.port || f.protocol != v1.ProtocolUDP })
	}
	f.sockets = slices.DeleteFunc(f.sockets, func(l listening) bool {
		gone := !slices.Contains(places, l.place)
		if gone {
			f.shut(l)
		}
		return gone
	})
	var errs []error
	for i := range f.sockets {
		errs = append(errs, f.sockets[i].silence(silent))
	}
	for _, at := range places {
		if slices.ContainsFunc(f.sockets, func(l listening) bool { return l.place == at }) {
			continue
		}
		s, err := f.carrier.listen(at, silent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.sockets = append(f.sockets, listening{at, s, silent})
		f.own.add(frontKey{f.protocol, at.addr})
	}
	return errors.Join(errs...)
}

func (l *listening) silence(on bool) error {
	s, ok := l.socket.(silencer)
	if !ok || l.silent == on {
		return nil
	}
	if err := s.silence(on); err != nil {
		return fmt.Errorf("cannot change whether %s is silent: %w", l.addr, err)
	}
	l.silent = on
	return nil
}

func (f *front) shut(l listening) {
	f.own.remove(frontKey{f.protocol, l.addr})
	l.socket.close()
}

func hasBackend(route *proxy.Route, addr netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(route.Backends, addr, func(e proxy.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// close ends the front and everything that came in through it.
func (f *front) close() {
	for _, l := range f.sockets {
		f.shut(l)
	}
	f.sockets = nil
	f.carrier.close()
	f.balancer.close()
}
