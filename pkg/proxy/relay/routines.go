package relay

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// goroutines is the plane of every system: one for each listener and two for each connection.
type goroutines struct{}

func (goroutines) check() {}
func (goroutines) close() {}

func (goroutines) carry(f *front) carrier {
	ctx, cancel := context.WithCancel(context.Background())
	return &routines{front: f, ctx: ctx, cancel: cancel, news: make(chan struct{}), links: map[link]struct{}{}}
}

// routines carries one front by goroutines.
type routines struct {
	*front
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	held   atomic.Int32   // connections that wait for an endpoint
	work   sync.WaitGroup // accept loops, connections, sessions

	mu     sync.Mutex
	closed bool
	news   chan struct{} // closed when the Route changes
	links  map[link]struct{}
}

// link is a connection or a session to an endpoint.
type link interface {
	target() netip.AddrPort
	abort()   // ends it at once, telling both sides
	removed() // its endpoint is no longer one of the Route's
}

func (f *routines) listen(at place, _ bool) (socket, error) {
	if f.protocol == v1.ProtocolUDP {
		return openUDP(f, at.addr)
	}
	return openTCP(f, at.addr)
}

// changed wakes who waits for an endpoint and tells links that theirs is gone.
func (f *routines) changed() {
	route := f.route.Load()
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

// next is closed when the Route is set anew.
func (f *routines) next() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.news
}

// add keeps a link; false: the front is closed.
func (f *routines) add(l link) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.links[l] = struct{}{}
	return true
}

func (f *routines) remove(l link) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, l)
}

func (f *routines) open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.links)
}

func (f *routines) close() {
	f.cancel()
	f.mu.Lock()
	f.closed = true
	links := slices.Collect(maps.Keys(f.links))
	f.mu.Unlock()
	for _, l := range links {
		l.abort()
	}
	f.work.Wait()
}
