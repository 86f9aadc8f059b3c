package epoll

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart reports whether a connection to an endpoint may use a client's address: the replies pass through this host only
// if client and endpoint are behind different interfaces, and neither is the host itself.
func apart(client, endpoint netip.Addr) bool {
	leads := func(addr netip.Addr) (int, bool) {
		list, err := netlink.RouteGet(addr.AsSlice())
		if err != nil || len(list) != 1 || list[0].Type != unix.RTN_UNICAST {
			return 0, false
		}
		return list[0].LinkIndex, true
	}
	if client.Is4() != endpoint.Is4() {
		return false
	}
	to, ok := leads(endpoint)
	from, known := leads(client)
	return ok && known && from != to
}

// pretend binds a new socket to a client's address, with a port that the kernel chooses.
func pretend(fd int, client netip.Addr) unix.Errno {
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if client.Is4() {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	if errno := setOption(fd, level, option, 1); errno != 0 {
		return errno
	}
	if errno := setOption(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); errno != 0 {
		return errno
	}
	name, size := nameOf(netip.AddrPortFrom(client, 0))
	return bindName(fd, &name, size)
}
