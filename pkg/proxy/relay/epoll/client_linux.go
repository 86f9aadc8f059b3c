package epoll

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart says whether a connection to an endpoint may carry a client's address: the answers come by this host only if the two are behind different
// interfaces of it, and neither is the host itself.
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

// pretend gives a new socket a client's address, with a port of the kernel's choice.
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
