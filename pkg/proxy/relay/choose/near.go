package choose

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// Near is the clients on this node: its own addresses, and the ranges of its pods. All fronts of a relay share it. The
// zero Near has none, and so has nil. It is safe for concurrent use.
type Near struct {
	ranges atomic.Pointer[[]netip.Prefix]
}

// Set replaces the ranges, and reports whether they changed.
func (n *Near) Set(ranges []netip.Prefix) (changed bool) {
	if slices.Equal(n.Ranges(), ranges) {
		return false
	}
	ranges = slices.Clone(ranges)
	n.ranges.Store(&ranges)
	return true
}

// Ranges returns the ranges last set. They must not be changed.
func (n *Near) Ranges() []netip.Prefix {
	if n == nil {
		return nil
	}
	if list := n.ranges.Load(); list != nil {
		return *list
	}
	return nil
}

// Has reports whether a client is on this node.
func (n *Near) Has(client netip.Addr) bool {
	return slices.ContainsFunc(n.Ranges(), func(p netip.Prefix) bool { return p.Contains(client) })
}
