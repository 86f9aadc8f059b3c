package limits

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	portRange = "/proc/sys/net/ipv4/ip_local_port_range"
	tableSize = "/proc/sys/net/netfilter/nf_conntrack_max" // missing while nothing tracks connections
)

// usualPorts is the size of the kernel's default range.
const usualPorts = 28232

// SourcePorts returns how many source ports the kernel may choose from in this network namespace; 0: unknown.
func SourcePorts() int {
	text, err := os.ReadFile(portRange)
	if err != nil {
		return 0
	}
	var first, last int
	if n, _ := fmt.Sscan(string(text), &first, &last); n != 2 || last < first {
		return 0
	}
	return last - first + 1
}

// HostCapacity returns the limits of this process and this network namespace. The soft limit of open files equals the
// hard one: Go raises it at start.
func HostCapacity() Capacity {
	c := Capacity{Files: mostFiles, Ports: cmp.Or(SourcePorts(), usualPorts)}
	if text, err := os.ReadFile(tableSize); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			c.Tracked = max(0, n)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < mostFiles {
		c.Files = int(limit.Cur)
	}
	return c
}
