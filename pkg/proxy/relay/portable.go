package relay

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/wake"
)

// Goroutines returns the Plane that works on every system: a goroutine for each listener and two for each connection.
func Goroutines(*Shared) Plane { return goroutines{} }

type goroutines struct{}

func (goroutines) Check() {}
func (goroutines) Close() {}

func (goroutines) Carry(f *Front) Carrier {
	ctx, cancel := context.WithCancel(context.Background())
	return &routines{Front: f, ctx: ctx, cancel: cancel, links: map[link]struct{}{}}
}

// routines moves the data of one front with goroutines.
type routines struct {
	*Front
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	held   atomic.Int32   // connections that wait for an endpoint
	work   sync.WaitGroup // accept loops, connections, sessions
	news   wake.Broadcast // the Route changed

	mu     sync.Mutex
	closed bool
	links  map[link]struct{}
}

// link is a connection or a session to an endpoint.
type link interface {
	ends() (client netip.Addr, endpoint netip.AddrPort)
	abort()   // ends it immediately with a reset to both sides
	removed() // its endpoint is no longer one of the Route's
}

// Listen opens a socket that accepts from everyone: connections to a front that drops are held, and their packets
// dropped, by the choice of an endpoint.
func (f *routines) Listen(at Place, _ Silence) (Socket, error) {
	if f.Protocol == v1.ProtocolUDP {
		return openUDP(f, at.Addr)
	}
	return openTCP(f, at.Addr)
}

// Changed wakes connections that wait for an endpoint, and notifies links whose endpoint is gone.
func (f *routines) Changed() {
	f.mu.Lock()
	f.news.Send()
	var gone []link
	for l := range f.links {
		if !f.Chooser.Leads(l.ends()) {
			gone = append(gone, l)
		}
	}
	f.mu.Unlock()
	for _, l := range gone {
		l.removed()
	}
}

// add adds a link; false: the front is closed.
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

func (f *routines) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.links)
}

func (f *routines) Close() {
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
