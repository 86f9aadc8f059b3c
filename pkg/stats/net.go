package stats

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Interface has the counters of a network interface since its creation.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// parseNetDev parses /proc/PID/net/dev (proc(5)): two header lines, then one line per interface. It omits loopback and the hosts' ends of containers'
// links: the other end counts their traffic.
func parseNetDev(text string) (all []Interface) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		fields := strings.Fields(rest)
		if !ok || len(fields) < 12 || name == "" || name == "lo" || strings.HasPrefix(name, "veth") || strings.HasPrefix(name, "docker") {
			continue
		}
		var n [12]uint64
		var err error
		for i := range n {
			if n[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
				break
			}
		}
		if err == nil {
			all = append(all, Interface{name, n[0], n[1], n[2], n[3], n[8], n[9], n[10], n[11]})
		}
	}
	return all
}

// parseRoute finds the interface of the default route in /proc/net/route; "" if there is none.
func parseRoute(text string) string {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 7 && fields[1] == "00000000" && fields[7] == "00000000" {
			return fields[0]
		}
	}
	return ""
}

// network reads the interfaces of a process's network namespace, that of the default route first.
func network(proc, process string) ([]Interface, error) {
	dir := proc + "/" + process + "/net/"
	text, err := os.ReadFile(dir + "dev")
	if err != nil {
		return nil, fmt.Errorf("cannot read the network's counters: %w", err)
	}
	all := parseNetDev(string(text))
	if len(all) < 2 {
		return all, nil // in any order
	}
	route, err := os.ReadFile(dir + "route")
	if err != nil {
		return all, nil // a kernel without IPv4 routes: any order will do
	}
	name := parseRoute(string(route))
	for i := range all {
		if all[i].Name == name {
			all[0], all[i] = all[i], all[0]
		}
	}
	return all, nil
}
