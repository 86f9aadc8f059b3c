package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ForgetFlows deletes the UDP flows that clients of a port of this host have with a pod from the kernel's table of connections.
// It is idempotent.
func ForgetFlows(port uint16, with netip.Addr) error {
	filter := &netlink.ConntrackFilter{}
	family := netlink.InetFamily(unix.AF_INET6)
	if with.Is4() {
		family = unix.AF_INET
	}
	err := errors.Join(filter.AddProtocol(unix.IPPROTO_UDP), filter.AddPort(netlink.ConntrackOrigDstPort, port), filter.AddIP(netlink.ConntrackReplySrcIP, with.AsSlice()))
	if err == nil {
		_, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
	}
	if err != nil {
		return fmt.Errorf("cannot end UDP flows with %s, which no longer has hostPort %d: %w", with, port, err)
	}
	return nil
}
