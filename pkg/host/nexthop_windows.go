package host

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// nextHops lists the next hops of the routing table, without routes whose metric is mark.
func nextHops(mark int) (out []netip.Addr, err error) {
	routes, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	for i := range routes {
		r := &routes[i]
		if r.Protocol == winipcfg.RouteProtocolNetMgmt && int(r.Metric) == mark {
			continue
		}
		out = append(out, r.NextHop.Addr().Unmap())
	}
	return out, nil
}

// watchNextHops watches nothing: callers compare periodically.
func watchNextHops(context.Context, int, func()) error { return nil }
