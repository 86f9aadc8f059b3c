package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

// avoidFor is how long an endpoint to which a connection failed gets no new traffic while others are there.
const avoidFor = 5 * time.Second

// balancer picks endpoints for the new traffic of one front, round robin, and remembers whom a client had (session affinity). Its state
// outlives changes of the Route. It is safe for concurrent use.
type balancer struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	targets  []proxy.Endpoint // sorted by address
	affinity time.Duration
	next     uint32
	sticky   *stickies
	clients  *stickyFront                 // nil: none yet
	failed   map[netip.AddrPort]time.Time // nil: none yet
}

func newBalancer(c clock.PassiveClock, s *stickies) *balancer {
	return &balancer{clock: c, next: rand.Uint32(), sticky: s}
}

// set takes a Route as it is now.
func (b *balancer) set(route *proxy.Route) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = route.Targets()
	if b.affinity = route.Affinity; b.affinity == 0 {
		b.forget()
	}
	for addr := range b.failed {
		if !b.has(addr) {
			delete(b.failed, addr)
		}
	}
}

func (b *balancer) has(addr netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(b.targets, addr, func(e proxy.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// pick chooses an endpoint for client that is not in tried: the one it had within the affinity time, or the next in turn, one that
// failed lately only when there is no other. false: none is left.
func (b *balancer) pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.targets) == 0 {
		return netip.AddrPort{}, false
	}
	if b.affinity == 0 {
		return b.turn(tried)
	}
	now := b.clock.Now()
	if b.clients == nil {
		b.clients = newStickyFront()
	}
	target, ok := b.sticky.get(b.clients, client, now, b.affinity)
	if !ok || !b.has(target) || slices.Contains(tried, target) {
		if target, ok = b.turn(tried); !ok {
			return target, false
		}
	}
	b.sticky.set(b.clients, client, target, now)
	return target, true
}

func (b *balancer) turn(tried []netip.AddrPort) (netip.AddrPort, bool) {
	n := uint32(len(b.targets))
	spare, found := netip.AddrPort{}, false
	for range n {
		b.next++
		target := b.targets[b.next%n].Addr
		if slices.Contains(tried, target) {
			continue
		}
		if len(b.failed) > 0 {
			if since, bad := b.failed[target]; bad && b.clock.Since(since) < avoidFor {
				if !found {
					spare, found = target, true
				}
				continue
			}
		}
		return target, true
	}
	return spare, found
}

// fail notes that an endpoint could not be reached.
func (b *balancer) fail(target netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.has(target) {
		return
	}
	if b.failed == nil {
		b.failed = map[netip.AddrPort]time.Time{}
	}
	b.failed[target] = b.clock.Now()
}

// sweep forgets clients whose time is over. Those who come do so too, a few at a time.
func (b *balancer) sweep() {
	b.mu.Lock()
	clients, affinity := b.clients, b.affinity
	b.mu.Unlock()
	if clients != nil {
		b.sticky.sweep(clients, b.clock.Now(), affinity)
	}
}

// forget forgets all clients.
func (b *balancer) forget() {
	if b.clients != nil {
		b.sticky.clear(b.clients)
		b.clients = nil
	}
}

// close gives back what others may use.
func (b *balancer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.affinity = 0
	b.forget()
}
