package learn

import (
	"math/bits"
	"net/netip"
	"slices"
)

// widest is the maximum number of host bits of a Service range: API servers refuse wider ranges (Kubernetes cmd/kube-apiserver/app/options
// validation.go, maxCIDRBits).
const widest = 20

// Ranges returns the narrowest ranges that contain the cluster IPs of Services, sorted. A cluster's range starts right before the address
// of the API server's Service (Kubernetes pkg/controlplane ServiceIPRange), and every other address gives its minimum size. The result
// never exceeds the API server's actual range. Addresses elsewhere (of other ServiceCIDRs or the other family) get a range that covers
// them.
func Ranges(apiServer netip.Addr, all []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, four := range []bool{true, false} {
		var family []netip.Addr
		for _, a := range all {
			if a.Is4() == four && a.IsValid() {
				family = append(family, a)
			}
		}
		first := netip.Addr{}
		if apiServer.IsValid() && apiServer.Is4() == four {
			first = apiServer.Prev()
		}
		out = append(out, rangesOf(first, family)...)
	}
	return Merge(out)
}

// rangesOf returns the ranges of one family; first is the start of its main range, invalid if unknown.
func rangesOf(first netip.Addr, all []netip.Addr) (out []netip.Prefix) {
	if !first.IsValid() {
		return cover(all)
	}
	reach := netip.PrefixFrom(first, max(first.BitLen()-min(zeros(first), widest), 0))
	length, others := first.BitLen(), []netip.Addr(nil)
	for _, a := range append(slices.Clone(all), first.Next()) {
		if reach.Contains(a) {
			length = min(length, shared(first, a))
		} else {
			others = append(others, a)
		}
	}
	return append(cover(others), netip.PrefixFrom(first, length))
}

// cover returns the narrowest range that contains all, or one range per address if that would be wider than any Service range.
func cover(all []netip.Addr) (out []netip.Prefix) {
	if len(all) == 0 {
		return nil
	}
	length := all[0].BitLen()
	for _, a := range all {
		length = min(length, shared(all[0], a))
	}
	if length >= all[0].BitLen()-widest {
		return []netip.Prefix{netip.PrefixFrom(all[0], length).Masked()}
	}
	for _, a := range all {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// shared is the number of leading bits that two addresses of one family have in common.
func shared(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return i*8 + bits.LeadingZeros8(d)
		}
	}
	return a.BitLen()
}

// zeros is the number of trailing zero bits of an address.
func zeros(a netip.Addr) (n int) {
	for _, b := range slices.Backward(a.AsSlice()) {
		if b != 0 {
			return n + bits.TrailingZeros8(b)
		}
		n += 8
	}
	return n
}

// Merge returns the same addresses in the fewest ranges, sorted.
func Merge(list []netip.Prefix) []netip.Prefix {
	out := sorted(list)
	for changed := true; changed; {
		changed = false
		merged := out[:0:0]
		for _, p := range out {
			last := len(merged) - 1
			switch {
			case last >= 0 && merged[last].Bits() <= p.Bits() && merged[last].Contains(p.Addr()):
			case last >= 0 && merged[last].Bits() == p.Bits() && p.Bits() > 0 && above(merged[last]) == above(p):
				merged[last], changed = above(p), true
			default:
				merged = append(merged, p)
			}
		}
		out = merged
	}
	return out
}

// above is the range of twice the size that contains p.
func above(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
}
