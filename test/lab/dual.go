package lab

import (
	"context"
	"fmt"
)

// Addresses that DualStack adds.
const (
	podCIDR6     = "fd00:10:244::/56"
	serviceCIDR6 = "fd00:10:96::/112"
)

// both returns a flag's value: the IPv4 one, with DualStack followed by a comma and the IPv6 one.
func (c *Cluster) both(four, six string) string {
	if c.DualStack {
		return four + "," + six
	}
	return four
}

// addr6 is the host's IPv6 address, which DualStack gives to eth0.
func (h *Host) addr6() string { return fmt.Sprintf("fd00:30::%x", h.Addr.As4()[3]) }

// upIPv6 is upLink for IPv6. Duplicate address detection is off: programs cannot listen on a tentative address.
func (h *Host) upIPv6(ctx context.Context) error {
	for _, args := range []string{
		"link set eth0 up",
		"addr replace " + h.addr6() + "/64 dev eth0 nodad",
		"-6 route replace unreachable " + podCIDR6 + " metric 1000000",
		"-6 route replace unreachable " + serviceCIDR6 + " metric 1000000",
	} {
		if err := ip(ctx, h.Namespace(), args); err != nil {
			return err
		}
	}
	return nil
}
