package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nextHops lists those of the main table, but of routes whose protocol is mark.
func nextHops(mark int) (out []netip.Addr, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	add := func(ip net.IP) {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, addr.Unmap())
		}
	}
	for _, r := range routes {
		if int(r.Protocol) == mark {
			continue
		}
		add(r.Gw)
		if via, ok := r.Via.(*netlink.Via); ok {
			add(via.Addr)
		}
		for _, hop := range r.MultiPath {
			add(hop.Gw)
		}
	}
	return out, nil
}
