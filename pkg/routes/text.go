package routes

import (
	"fmt"
	"net"
	"strings"
	"text/tabwriter"
)

// Form is an output format for routes that are added manually or by a script.
type Form string

const (
	IPRoute  Form = "ip-route"  // iproute2 of Linux; safe to run again
	RouteAdd Form = "route-add" // route.exe of Windows; survives a reboot
	Generic  Form = "generic"   // columns: destination, mask, next hop, node
)

// ParseForm parses a form that a user typed.
func ParseForm(s string) (Form, error) {
	switch f := Form(s); f {
	case IPRoute, RouteAdd, Generic:
		return f, nil
	}
	return "", fmt.Errorf("form %q is not known; want %s, %s or %s", s, IPRoute, RouteAdd, Generic)
}

// Lines writes the routes in form. A next hop outside all networks of the host (PodGateway) needs an interface: link,
// or a placeholder that describes it if link is "".
func (s State) Lines(form Form, link string) string {
	var b strings.Builder
	if form == Generic {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "DESTINATION\tMASK\tNEXT HOP\tNODE")
		for _, r := range s.Routes {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Dst, mask(r), r.Via, r.Node)
		}
		w.Flush() // cannot fail: it writes to memory
		return b.String()
	}
	for _, r := range s.Routes {
		through := ""
		if r.Via != r.Peer {
			through = link
			if link == "" {
				through = fmt.Sprintf("<interface towards %s>", r.Peer)
			}
		}
		switch form {
		case RouteAdd:
			fmt.Fprintf(&b, "route -p add %s%s\n", windowsDestination(r), suffix(" if ", through, ""))
		default:
			fmt.Fprintf(&b, "ip route replace %s via %s%s\n", r.Dst, r.Via, suffix(" dev ", through, " onlink"))
		}
	}
	return b.String()
}

// windowsDestination formats a route for route.exe, which uses masks for IPv4 and prefix lengths for IPv6.
func windowsDestination(r Route) string {
	if r.Dst.Addr().Is6() {
		return fmt.Sprintf("%s %s", r.Dst, r.Via)
	}
	return fmt.Sprintf("%s mask %s %s", r.Dst.Addr(), mask(r), r.Via)
}

func mask(r Route) string {
	if r.Dst.Addr().Is6() {
		return fmt.Sprintf("/%d", r.Dst.Bits())
	}
	return net.IP(net.CIDRMask(r.Dst.Bits(), 32)).String()
}

func suffix(before, value, after string) string {
	if value == "" {
		return ""
	}
	return before + value + after
}
