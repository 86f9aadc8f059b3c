// Package otherproxy finds what upstream's kube-proxy has on this host, because it still runs or left it behind. Its
// rules see connections to Services before our proxy does.
//
//	iptables-save, nft, /proc/net/ip_vs, interface kube-ipvs0; HNS --Look--> Found --> `kubelet doctor`, Event
//
// It only reads, and loads no module into the kernel. A tool that the host lacks has no rules.
package otherproxy

import (
	"fmt"
	"strings"
)

// Found is what sends connections to Services elsewhere than our proxy does.
type Found struct {
	Traces []string // one for each place, with the number of its rules; at most seven
	Unread []string // what could not be read, and why
	Fix    string   // removes the Traces; "": there are none
}

// String says what was found and what to do, for an Event; "" if nothing was found.
func (f Found) String() string {
	if len(f.Traces) == 0 {
		return ""
	}
	return fmt.Sprintf("%s; to remove it: %s", f.What(), f.Fix)
}

// What says what was found.
func (f Found) What() string {
	if len(f.Traces) == 0 {
		return "no rules of kube-proxy take connections to Services"
	}
	return "rules of kube-proxy take connections to Services before winkube's proxy sees them: " + strings.Join(f.Traces, ", ")
}

// count formats a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
