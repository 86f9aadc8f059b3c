package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// defaultRoutes returns the indexes of the interfaces of the best IPv4 and IPv6 default routes; 0: none.
func defaultRoutes() (four, six int, err error) {
	if four, err = defaultRoute(netlink.FAMILY_V4); err != nil {
		return 0, 0, err
	}
	six, err = defaultRoute(netlink.FAMILY_V6)
	return four, six, err
}

func defaultRoute(family int) (int, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST, Dst: nil}
	routes, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST)
	if err != nil {
		return 0, fmt.Errorf("cannot list routes: %w", err)
	}
	index, metric := 0, 0
	for _, r := range routes {
		link := r.LinkIndex
		if link == 0 && len(r.MultiPath) > 0 {
			link = r.MultiPath[0].LinkIndex
		}
		if link != 0 && (index == 0 || r.Priority < metric) {
			index, metric = link, r.Priority
		}
	}
	return index, nil
}

// innerInterfaces returns the indexes of the interfaces that lead to no other machine, and of the dummies among them.
func innerInterfaces() (inner, dummies map[int]bool, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, nil, err
	}
	inner, dummies = map[int]bool{}, map[int]bool{}
	for _, link := range links {
		switch link.Type() {
		case "dummy", "ifb":
			dummies[link.Attrs().Index] = true
			fallthrough
		case "bridge", "vxlan":
			inner[link.Attrs().Index] = true
		}
	}
	return inner, dummies, nil
}

// addressesOf returns the addresses of interfaces by index. It asks the kernel once: net.Interface.Addrs lists all addresses for each interface, and a
// node has one for each pod.
func addressesOf([]net.Interface) (map[int][]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	out := map[int][]netip.Addr{}
	for i := range list {
		if addr, ok := netip.AddrFromSlice(list[i].IP); ok {
			out[list[i].LinkIndex] = append(out[list[i].LinkIndex], addr.Unmap())
		}
	}
	return out, nil
}
