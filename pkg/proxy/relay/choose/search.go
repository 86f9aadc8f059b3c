package choose

import (
	"net/netip"
	"time"
)

const (
	// DialTimeout is the patience with one endpoint while others are left to try, LastDialTimeout with the last.
	DialTimeout     = time.Second
	LastDialTimeout = 10 * time.Second
	// MaxDials is how many endpoints a connection tries at most.
	MaxDials = 5
	// A connection to a front that drops is held for HoldTime in case an endpoint comes, as the retransmitted SYN of a dropped one
	// would find it; at most MaxHeld of a front.
	HoldTime = 30 * time.Second
	MaxHeld  = 256
)

// Action is what a connection does next.
type Action uint8

const (
	// GiveUp: no endpoint answers.
	GiveUp Action = iota
	// Dial the endpoint of the Step.
	Dial
	// Hold until the front has another Route, then ask again; give up where too many are held.
	Hold
)

// Step is the next of a Search.
type Step struct {
	Do       Action
	Endpoint netip.AddrPort
	Patience time.Duration // with that endpoint
}

// Search is one connection's way to an endpoint. No byte of the client has been passed on before, so any endpoint will do. The zero Search
// has tried none.
type Search struct{ tried []netip.AddrPort }

// Next says what a connection of client does next.
func (s *Search) Next(c *Chooser, client netip.Addr) Step {
	if len(s.tried) >= MaxDials {
		return Step{Do: GiveUp}
	}
	endpoint, ok := c.Next(client, s.tried)
	route := c.Route()
	if !ok && len(s.tried) == 0 && len(route.Backends) > 0 { // they came just now
		endpoint, ok = c.Next(client, nil)
	}
	switch {
	case !ok && len(s.tried) == 0 && route.Drop:
		return Step{Do: Hold}
	case !ok:
		return Step{Do: GiveUp}
	}
	patience := DialTimeout
	if len(s.tried)+1 >= min(MaxDials, len(route.Backends)) {
		patience = LastDialTimeout
	}
	return Step{Dial, endpoint, patience}
}

// Failed notes that an endpoint could not be reached: this connection does not try it again, and others avoid it for a while.
func (s *Search) Failed(c *Chooser, endpoint netip.AddrPort) {
	c.Failed(endpoint)
	s.Skip(endpoint)
}

// Skip notes that this connection does not try an endpoint again, which is not the endpoint's fault.
func (s *Search) Skip(endpoint netip.AddrPort) { s.tried = append(s.tried, endpoint) }

// Done forgets what was tried, once the connection has its endpoint.
func (s *Search) Done() { s.tried = nil }
