package hns

import (
	"net/netip"
	"slices"
)

// lacking returns the ranges of want that are missing in a list of HNS, as strings. HNS may write a range with host
// bits set, or a single address without a prefix length.
func lacking(have []string, want []netip.Prefix) (out []string) {
	var there []netip.Prefix
	for _, text := range have {
		if p, err := netip.ParsePrefix(text); err == nil {
			there = append(there, p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			there = append(there, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, p := range want {
		if !slices.Contains(there, p.Masked()) {
			out = append(out, p.Masked().String())
		}
	}
	return out
}
