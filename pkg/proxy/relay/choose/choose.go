// Package choose is the policy that selects the endpoint for a new connection or UDP session of a front. Every plane of
// the relay uses it.
//
//	Route: backends (already chosen by readiness, topology and traffic policy), sources, affinity
//	  client allowed? on this node? --> had an endpoint within the affinity time? --> else the next in turn, of those that do not drain --> failed lately? another first
//
// It does no I/O: callers report failures to a Chooser, and a Search returns the next step for a connection.
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

// avoidFor is how long an endpoint gets no new traffic after a failed connection, if there are others.
const avoidFor = 5 * time.Second

// Chooser picks endpoints for the new traffic of one front, round robin, and remembers each client's endpoint (session
// affinity). Its state survives changes of the Route. It is safe for concurrent use.
type Chooser struct {
	clock clock.PassiveClock
	route atomic.Pointer[proxy.Route]

	near       *Near
	mu         sync.Mutex
	targets    []proxy.Endpoint // for new traffic, sorted by address
	atHome     []proxy.Endpoint // the same for clients on this node; empty: targets
	affinity   time.Duration
	turn       uint32
	clients    *Clients
	remembered *frontClients                // nil: none yet
	failed     map[netip.AddrPort]time.Time // nil: none yet
}

// New returns a Chooser for a front before its first Route. All fronts of a relay share clients and near.
func New(clock clock.PassiveClock, clients *Clients, near *Near) *Chooser {
	return &Chooser{clock: clock, turn: rand.Uint32(), clients: clients, near: near}
}

// Set sets the front's Route. The caller must not change it afterwards.
func (c *Chooser) Set(route *proxy.Route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets, c.atHome = route.Targets(), route.NearTargets()
	if c.affinity = route.Affinity; c.affinity == 0 {
		c.forget()
	}
	for addr := range c.failed {
		if !has(c.targets, addr) && !has(c.atHome, addr) {
			delete(c.failed, addr)
		}
	}
	c.route.Store(route)
}

// Route returns the last Route; nil: none yet. It must not be changed.
func (c *Chooser) Route() *proxy.Route { return c.route.Load() }

// Leads reports whether an endpoint is still one of the Route's for a client, including draining ones, so that its
// connections may stay.
func (c *Chooser) Leads(client netip.Addr, endpoint netip.AddrPort) bool {
	return has(c.backends(c.route.Load(), client), endpoint)
}

// Keeps reports whether an endpoint must see the client's own address: the Route says so, and the endpoint is one of
// those on this node.
func (c *Chooser) Keeps(endpoint netip.AddrPort) bool {
	route := c.route.Load()
	return route.KeepClient && has(route.Backends, endpoint)
}

// Backends returns the Route's back ends for a client. They must not be changed.
func (c *Chooser) Backends(client netip.Addr) []proxy.Endpoint {
	return c.backends(c.route.Load(), client)
}

func (c *Chooser) backends(route *proxy.Route, client netip.Addr) []proxy.Endpoint {
	if len(route.Near) > 0 && c.isNear(route, client) {
		return route.Near
	}
	return route.Backends
}

// isNear reports whether a client is on this node. A program's connection to an address that is this host's comes from
// that address.
func (c *Chooser) isNear(route *proxy.Route, client netip.Addr) bool {
	return client == route.Front.Addr() || c.near.Has(client)
}

func has(list []proxy.Endpoint, addr netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(list, addr, func(e proxy.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// Next chooses an endpoint for client that is not in tried: the one that it had within the affinity time, or the next
// in turn; one that failed recently only if there is no other. false: none is left.
func (c *Chooser) Next(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	targets := c.targets
	if len(c.atHome) > 0 && c.isNear(c.route.Load(), client) {
		targets = c.atHome
	}
	if len(targets) == 0 {
		return netip.AddrPort{}, false
	}
	if c.affinity == 0 {
		return c.inTurn(targets, tried)
	}
	now := c.clock.Now()
	if c.remembered == nil {
		c.remembered = newFrontClients()
	}
	target, ok := c.clients.get(c.remembered, client, now, c.affinity)
	if !ok || !has(targets, target) || slices.Contains(tried, target) {
		if target, ok = c.inTurn(targets, tried); !ok {
			return target, false
		}
	}
	c.clients.set(c.remembered, client, target, now)
	return target, true
}

func (c *Chooser) inTurn(targets []proxy.Endpoint, tried []netip.AddrPort) (netip.AddrPort, bool) {
	n := uint32(len(targets))
	spare, found := netip.AddrPort{}, false
	for range n {
		c.turn++
		target := targets[c.turn%n].Addr
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

// Failed records that an endpoint could not be reached. New traffic avoids it for a few seconds.
func (c *Chooser) Failed(endpoint netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !has(c.targets, endpoint) && !has(c.atHome, endpoint) {
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

// Close releases the room of its clients. Idempotent.
func (c *Chooser) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.affinity = 0
	c.forget()
}
