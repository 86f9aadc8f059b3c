package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nextHops lists the next hops of the main table, without routes whose protocol is mark.
func nextHops(mark int) (out []netip.Addr, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	for i := range routes {
		out = append(out, hopsOf(&routes[i], mark)...)
	}
	return out, nil
}

// hopsOf lists the next hops of a route whose protocol is not mark.
func hopsOf(r *netlink.Route, mark int) (out []netip.Addr) {
	if int(r.Protocol) == mark {
		return nil
	}
	add := func(ip net.IP) {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, addr.Unmap())
		}
	}
	add(r.Gw)
	if via, ok := r.Via.(*netlink.Via); ok {
		add(via.Addr)
	}
	for _, hop := range r.MultiPath {
		add(hop.Gw)
	}
	return out
}

func watchNextHops(ctx context.Context, mark int, changed func()) error {
	updates := make(chan netlink.RouteUpdate, 1024)
	if err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{ReceiveBufferSize: 1 << 20}); err != nil {
		return fmt.Errorf("cannot watch routes: %w", err)
	}
	go func() { // ends with the subscription, soon after ctx
		for update := range updates {
			if update.Table == unix.RT_TABLE_MAIN && update.Route.Type == unix.RTN_UNICAST && len(hopsOf(&update.Route, mark)) > 0 {
				changed()
			}
		}
	}()
	return nil
}
