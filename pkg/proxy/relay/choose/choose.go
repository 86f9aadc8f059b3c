// Package choose is the one policy of which endpoint a new connection or UDP session of a front goes to. Every plane of the relay asks it.
//
//	Route: backends (already chosen by readiness, topology and traffic policy), sources, affinity
//	  client allowed? --> had an endpoint within the affinity time? --> else the next in turn, of those that do not drain --> failed lately? another first
//
// It does no I/O: a Chooser is told what failed, and a Search says what to do next with a connection.
package choose

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

// avoidFor is how long an endpoint to which a connection failed gets no new traffic while others are there.
const avoidFor = 5 * time.Second

// Chooser picks endpoints for the new traffic of one front, round robin, and remembers which one a client had (session affinity). Its state
// outlives changes of the Route. It is safe for concurrent use.
type Chooser struct {
	clock clock.PassiveClock
	route atomic.Pointer[proxy.Route]

	mu         sync.Mutex
	targets    []proxy.Endpoint // sorted by address
	affinity   time.Duration
	turn       uint32
	clients    *Clients
	remembered *frontClients                // nil: none yet
	failed     map[netip.AddrPort]time.Time // nil: none yet
}

// New returns a Chooser for a front that is about to get its first Route. clients are shared by all fronts of a relay.
func New(clock clock.PassiveClock, clients *Clients) *Chooser {
	return &Chooser{clock: clock, turn: rand.Uint32(), clients: clients}
}

// Set gives the front a Route, which must not be changed any more.
func (c *Chooser) Set(route *proxy.Route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets = route.Targets()
	if c.affinity = route.Affinity; c.affinity == 0 {
		c.forget()
	}
	for addr := range c.failed {
		if !has(c.targets, addr) {
			delete(c.failed, addr)
		}
	}
	c.route.Store(route)
}

// Route is the Route that was set last; nil: none yet. It must not be changed.
func (c *Chooser) Route() *proxy.Route { return c.route.Load() }

// Leads says whether an endpoint is still one of the Route's, draining ones included: what is connected to it may stay.
func (c *Chooser) Leads(endpoint netip.AddrPort) bool { return has(c.route.Load().Backends, endpoint) }

func has(list []proxy.Endpoint, addr netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(list, addr, func(e proxy.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// Next chooses an endpoint for client that is not in tried: the one it had within the affinity time, or the next in turn, one that
// failed lately only when there is no other. false: none is left.
func (c *Chooser) Next(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.targets) == 0 {
		return netip.AddrPort{}, false
	}
	if c.affinity == 0 {
		return c.inTurn(tried)
	}
	now := c.clock.Now()
	if c.remembered == nil {
		c.remembered = newFrontClients()
	}
	target, ok := c.clients.get(c.remembered, client, now, c.affinity)
	if !ok || !has(c.targets, target) || slices.Contains(tried, target) {
		if target, ok = c.inTurn(tried); !ok {
			return target, false
		}
	}
	c.clients.set(c.remembered, client, target, now)
	return target, true
}

func (c *Chooser) inTurn(tried []netip.AddrPort) (netip.AddrPort, bool) {
	n := uint32(len(c.targets))
	spare, found := netip.AddrPort{}, false
	for range n {
		c.turn++
		target := c.targets[c.turn%n].Addr
		if slices.Contains(tried, target) {
			continue
		}
		if len(c.failed) > 0 {
			if since, bad := c.failed[target]; bad && c.clock.Since(since) < avoidFor {
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

// Failed notes that an endpoint could not be reached. New traffic avoids it for a few seconds.
func (c *Chooser) Failed(endpoint netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !has(c.targets, endpoint) {
		return
	}
	if c.failed == nil {
		c.failed = map[netip.AddrPort]time.Time{}
	}
	c.failed[endpoint] = c.clock.Now()
}

// Expire forgets clients whose affinity time is over. Next does so too, a few at a time.
func (c *Chooser) Expire() {
	c.mu.Lock()
	remembered, affinity := c.remembered, c.affinity
	c.mu.Unlock()
	if remembered != nil {
		c.clients.expireAll(remembered, c.clock.Now(), affinity)
	}
}

// forget forgets all clients.
func (c *Chooser) forget() {
	if c.remembered != nil {
		c.clients.clear(c.remembered)
		c.remembered = nil
	}
}

// Close gives back what others may use. It is idempotent.
func (c *Chooser) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.affinity = 0
	c.forget()
}
