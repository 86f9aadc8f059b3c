package relay

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// front is one front of the Table as it is served: its sockets, one for each address, and what came in through them.
//
//	set(route, addrs) ... set ... --> close
//
// Relay.Sync calls set and close; accept loops, connections and sessions read route and balancer.
type front struct {
	cfg      *Config
	own      *ownSockets
	protocol v1.Protocol
	balancer *balancer
	route    atomic.Pointer[proxy.Route]
	sockets  map[netip.AddrPort]socket // of Sync only
	ctx      context.Context           // ends with close
	cancel   context.CancelFunc
	held     atomic.Int32   // connections that wait for an endpoint
	work     sync.WaitGroup // accept loops, connections, sessions

	mu     sync.Mutex
	closed bool
	news   chan struct{} // closed by the next set
	links  map[link]struct{}
}

// socket is what listens on one address of a front.
type socket interface {
	close() // stops listening; returns when nothing new can come in
}

// link is a connection or a session to an endpoint.
type link interface {
	target() netip.AddrPort
	abort()   // ends it at once, telling both sides
	removed() // its endpoint is no longer one of the Route's
}

// ownSockets are all sockets on which the relay listens, by frontKey. An endpoint that is one of them would have the relay talk to itself
// without end.
type ownSockets struct{ sync.Map }

func (o *ownSockets) has(protocol v1.Protocol, addr netip.AddrPort) bool {
	_, ok := o.Load(frontKey{protocol, addr})
	return ok
}

var errOwnFront = errors.New("the endpoint is a front of a Service on this node")

func newFront(cfg *Config, own *ownSockets, protocol v1.Protocol) *front {
	ctx, cancel := context.WithCancel(context.Background())
	return &front{cfg: cfg, own: own, protocol: protocol, balancer: newBalancer(cfg.Clock), sockets: map[netip.AddrPort]socket{}, ctx: ctx, cancel: cancel,
		news: make(chan struct{}), links: map[link]struct{}{}}
}

// set serves route on addrs. Sockets whose address stays are kept, with their backlog and connections. A Route without backends has no
// sockets, so that the kernel itself refuses (reset, or port unreachable), unless it drops. Connections to an endpoint that is not in
// the Route any more are told so (link.removed).
func (f *front) set(route proxy.Route, addrs []netip.AddrPort) error {
	before := f.route.Load()
	if before == nil || !before.Equal(&route) {
		f.balancer.set(&route)
		f.route.Store(&route)
		f.publish(&route)
	}
	if len(route.Backends) == 0 && !route.Drop {
		addrs = nil
	}
	for _, addr := range slices.Collect(maps.Keys(f.sockets)) {
		if !slices.Contains(addrs, addr) {
			f.shut(addr)
		}
	}
	var errs []error
	for _, addr := range addrs {
		if f.sockets[addr] != nil {
			continue
		}
		s, err := f.open(addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.sockets[addr] = s
		f.own.Store(frontKey{f.protocol, addr}, nil)
	}
	return errors.Join(errs...)
}

func (f *front) open(addr netip.AddrPort) (socket, error) {
	if f.protocol == v1.ProtocolUDP {
		return openUDP(f, addr)
	}
	return openTCP(f, addr)
}

func (f *front) shut(addr netip.AddrPort) {
	f.own.Delete(frontKey{f.protocol, addr})
	f.sockets[addr].close()
	delete(f.sockets, addr)
}

// publish wakes who waits for an endpoint and tells links that theirs is gone.
func (f *front) publish(route *proxy.Route) {
	f.mu.Lock()
	close(f.news)
	f.news = make(chan struct{})
	var gone []link
	for l := range f.links {
		if !hasBackend(route, l.target()) {
			gone = append(gone, l)
		}
	}
	f.mu.Unlock()
	for _, l := range gone {
		l.removed()
	}
}

func hasBackend(route *proxy.Route, addr netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(route.Backends, addr, func(e proxy.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// changed is closed when the Route is set anew.
func (f *front) changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.news
}

// add keeps a link; false: the front is closed.
func (f *front) add(l link) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.links[l] = struct{}{}
	return true
}

func (f *front) remove(l link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, l)
}

// close ends the front and everything that came in through it, and waits for its goroutines.
func (f *front) close() {
	f.cancel()
	for addr := range f.sockets {
		f.shut(addr)
	}
	f.mu.Lock()
	f.closed = true
	links := slices.Collect(maps.Keys(f.links))
	f.mu.Unlock()
	for _, l := range links {
		l.abort()
	}
	f.work.Wait()
}
