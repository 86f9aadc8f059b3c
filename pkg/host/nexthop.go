package host

import (
	"context"
	"net/netip"
	"slices"
)

// NextHops lists the next hops of this host's routes, sorted, without link-local ones. It skips routes that carry mark:
// their protocol on Linux, their metric on Windows.
func NextHops(mark int) ([]netip.Addr, error) {
	all, err := nextHops(mark)
	all = slices.DeleteFunc(all, func(a netip.Addr) bool {
		return !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast()
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), err
}

// WatchNextHops calls changed, which must not block, after each change of a route that NextHops includes, until ctx
// ends. On Windows it never calls it.
func WatchNextHops(ctx context.Context, mark int, changed func()) error {
	return watchNextHops(ctx, mark, changed)
}
