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
	clients  map[netip.Addr]sticky // nil: none yet
	swept    time.Time
	failed   map[netip.AddrPort]time.Time // nil: none yet
}

// sticky is where a client went last.
type sticky struct {
	target netip.AddrPort
	last   time.Time
}

func newBalancer(c clock.PassiveClock) *balancer {
	return &balancer{clock: c, next: rand.Uint32(), swept: c.Now()}
}

// set takes a Route as it is now.
func (b *balancer) set(route *proxy.Route) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = route.Targets()
	if b.affinity = route.Affinity; b.affinity == 0 {
		clear(b.clients)
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
	b.sweep(now)
	had, ok := b.clients[client]
	target := had.target
	if !ok || now.Sub(had.last) >= b.affinity || !b.has(target) || slices.Contains(tried, target) {
		if target, ok = b.turn(tried); !ok {
			return target, false
		}
	}
	if b.clients == nil {
		b.clients = map[netip.Addr]sticky{}
	}
	b.clients[client] = sticky{target, now}
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

// sweep forgets clients whose time is over. It runs once in the affinity time, so it costs each client a constant.
func (b *balancer) sweep(now time.Time) {
	if now.Sub(b.swept) < b.affinity {
		return
	}
	b.swept = now
	for client, had := range b.clients {
		if now.Sub(had.last) >= b.affinity {
			delete(b.clients, client)
		}
	}
}
