package host

import (
	"net/netip"
	"slices"
)

// NextHops lists the addresses to which routes of this host lead, sorted, without link-local ones. Routes that carry mark are left out: on Linux
// it is their protocol, on Windows their metric.
func NextHops(mark int) ([]netip.Addr, error) {
	all, err := nextHops(mark)
	all = slices.DeleteFunc(all, func(a netip.Addr) bool {
		return !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast()
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), err
}
