package choose

import (
	"net/netip"
	"time"
)

const (
	// DialTimeout is the timeout for one endpoint while others are left to try, LastDialTimeout for the last.
	DialTimeout     = time.Second
	LastDialTimeout = 10 * time.Second
	// MaxDials is the maximum number of endpoints that a connection tries.
	MaxDials = 5
	// A connection to a front that drops is held for HoldTime in case an endpoint appears, as a retransmitted SYN would
	// find it; at most MaxHeld per front.
	HoldTime = 30 * time.Second
	MaxHeld  = 256
)

// Action is the next action of a connection.
type Action uint8

const (
	// GiveUp: no endpoint responds.
	GiveUp Action = iota
	// Dial the endpoint of the Step.
	Dial
	// Hold until the front has another Route, then ask again; give up if too many are held.
	Hold
)

// Step is one step of a Search.
type Step struct {
	Do       Action
	Endpoint netip.AddrPort
	Patience time.Duration // timeout for that endpoint
}

// Search finds an endpoint for one connection. No data of the client has been forwarded yet, so any endpoint will do.
// The zero Search has tried none.
type Search struct{ tried []netip.AddrPort }

// Next returns the next step for a connection of client.
func (s *Search) Next(c *Chooser, client netip.Addr) Step {
	if len(s.tried) >= MaxDials {
		return Step{Do: GiveUp}
	}
	endpoint, ok := c.Next(client, s.tried)
	route := c.Route()
	backends := c.backends(route, client)
	if !ok && len(s.tried) == 0 && len(backends) > 0 { // they were added just now
		endpoint, ok = c.Next(client, nil)
	}
	switch {
	case !ok && len(s.tried) == 0 && route.Drop:
		return Step{Do: Hold}
	case !ok:
		return Step{Do: GiveUp}
	}
	patience := DialTimeout
	if len(s.tried)+1 >= min(MaxDials, len(backends)) {
		patience = LastDialTimeout
	}
	return Step{Dial, endpoint, patience}
}

// Failed records that an endpoint could not be reached: this connection does not try it again, and others avoid it for
// a while.
func (s *Search) Failed(c *Chooser, endpoint netip.AddrPort) {
	c.Failed(endpoint)
	s.Skip(endpoint)
}

// Skip excludes an endpoint from this connection's search, for a reason that does not concern other connections.
func (s *Search) Skip(endpoint netip.AddrPort) { s.tried = append(s.tried, endpoint) }

// Done clears the tried endpoints once the connection has one.
func (s *Search) Done() { s.tried = nil }
