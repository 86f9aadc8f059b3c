package routes

import (
	"net/netip"
	"slices"
)

// ranges are pod CIDRs that do not overlap, each with its node.
type ranges struct {
	of      map[netip.Prefix]string
	lengths []int    // in bits
	around  struct { // the last result of holder
		prefix netip.Prefix
		node   string
	}
}

// add adds a range that overlaps with no other.
func (r *ranges) add(dst netip.Prefix, node string) {
	r.of[dst] = node
	if !slices.Contains(r.lengths, dst.Bits()) {
		r.lengths = append(r.lengths, dst.Bits())
	}
}

// overlapping returns the node whose range overlaps with dst; "": none. A cluster's ranges have one or two lengths, so
// a lookup of the ranges that contain dst is nearly always enough.
func (r *ranges) overlapping(dst netip.Prefix) string {
	longer := false
	for _, bits := range r.lengths {
		longer = longer || bits > dst.Bits()
		if bits <= dst.Bits() {
			if other := r.of[netip.PrefixFrom(dst.Addr(), bits).Masked()]; other != "" {
				return other
			}
		}
	}
	if !longer {
		return ""
	}
	first := netip.Prefix{}
	for taken := range r.of {
		if taken.Overlaps(dst) && (!first.IsValid() || comparePrefixes(taken, first) < 0) {
			first = taken
		}
	}
	return r.of[first]
}

// holder returns the node whose range contains an address; "": none. Nodes' addresses are near each other, so the last
// result is often valid for the next call. No range is added between calls.
func (r *ranges) holder(addr netip.Addr) string {
	if r.around.prefix.Contains(addr) {
		return r.around.node
	}
	node, narrowest := "", 0
	for _, length := range r.lengths {
		if in, err := addr.Prefix(length); err == nil {
			narrowest = max(narrowest, length)
			if other := r.of[in]; other != "" {
				node = other
			}
		}
	}
	if in, err := addr.Prefix(narrowest); err == nil {
		r.around.prefix, r.around.node = in, node
	}
	return node
}
