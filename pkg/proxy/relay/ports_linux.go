package relay

import (
	"fmt"
	"os"
	"strings"

	"k8s.io/klog/v2"
)

const (
	portRange = "/proc/sys/net/ipv4/ip_local_port_range"
	reusePort = "/proc/sys/net/ipv4/tcp_tw_reuse"
)

// preparePorts returns how many source ports the kernel may choose from; 0: unknown. As the side that passes on a client's end first, a relay
// keeps each of its own connections a minute in TIME_WAIT, and with it a source port towards that endpoint: 470 connections a second would
// use them up. So the kernel is told to reuse those that are a second old, which timestamps make safe (RFC 6191), unless somebody has
// decided otherwise: its own setting, 2, does so for loopback only.
func preparePorts() int {
	if setting, err := os.ReadFile(reusePort); err == nil && strings.TrimSpace(string(setting)) == "2" {
		if err := os.WriteFile(reusePort, []byte("1"), 0o644); err != nil {
			klog.InfoS("Source ports in TIME_WAIT cannot be reused: many short connections to one endpoint may use them up", "err", err)
		}
	}
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
