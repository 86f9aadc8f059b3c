package ipstack

import (
	"fmt"
	"net/netip"
	"strings"
)

// resolver is an Internet address, reached through the host's default gateway.
var resolver = netip.MustParseAddrPort("198.51.100.53:443")

// asked returns the places whose clients use a front. Node ports and external addresses also serve other hosts; cluster addresses serve only pods
// and hosts of the cluster.
func asked(f Front) []Place {
	if f.Addr.Addr().IsUnspecified() || f.Outer {
		return []Place{Pod, Self, Other, Outside}
	}
	return []Place{Pod, Self}
}

// Table returns what can be reached, one question per line: the fronts, the sockets that Windows has on all addresses, pods, the API server and the
// Internet. Hops follow each answer that is not yes; with every, all answers.
func (h *Host) Table(every bool) string {
	var b strings.Builder
	line := func(q Question, what string) {
		if q.From == Pod && h.asking() == nil {
			return
		}
		a := h.Ask(q)
		fmt.Fprintf(&b, "%s -> %s: %s", q.From, what, a.Verdict)
		if a.Verdict == Yes && a.Sees != "" {
			fmt.Fprintf(&b, ", from %s", a.Sees)
		}
		fmt.Fprintln(&b)
		for _, hop := range a.Hops {
			if every || a.Verdict != Yes {
				fmt.Fprintf(&b, "    %s\n", hop)
			}
		}
	}
	for _, f := range h.Fronts {
		protocol := "TCP"
		if f.UDP {
			protocol = "UDP"
		}
		for _, from := range asked(f) {
			line(Question{from, f.Addr, f.UDP, true}, fmt.Sprintf("%s, %s %s", f.Name, protocol, f.Addr))
		}
	}
	if at := h.held(); at.IsValid() {
		for _, l := range Wildcards() {
			to := netip.AddrPortFrom(at, l.Addr.Port())
			line(Question{From: Pod, To: to}, fmt.Sprintf("%s of this node at the service address %s", l.Owner, to))
		}
	}
	line(Question{From: Pod, To: h.API}, "API server's own address")
	line(Question{From: Self, To: h.API}, "API server's own address")
	if h.Remote.IsValid() {
		remote := netip.AddrPortFrom(h.Remote, 8080)
		line(Question{From: Pod, To: remote}, "pod of another node")
		line(Question{From: Self, To: remote}, "pod of another node")
	}
	if e := h.asking(); e != nil {
		pod := netip.AddrPortFrom(h.addressOf(e), 8080)
		line(Question{From: Self, To: pod}, "pod of this node")
		line(Question{From: Other, To: pod}, "pod of this node")
	}
	line(Question{From: Pod, To: resolver}, "the Internet")
	line(Question{From: Self, To: resolver}, "the Internet")
	if h.Relay != "" {
		// Go binds to 0.0.0.0:0 before ConnectEx (net/fd_windows.go, connect), so that all endpoints share one pool of ports, unless the socket sets the
		// option to share ports (Microsoft, "SOL_SOCKET Socket Options").
		to := "all endpoints together"
		if h.SharedPorts {
			to = "each endpoint"
		}
		fmt.Fprintf(&b, "%s has %d source ports to %s\n", h.Relay, h.dynamic, to)
	}
	if blocks := h.reserving; blocks > 0 { // KB4550969 of April 2020 reduced them on Server 2019; by how many is not documented
		fmt.Fprintf(&b, "%d load balancers without direct server return reserve %d dynamic ports\n", blocks, blocks*64)
	}
	return b.String()
}

// held returns a Service address that one of the host's interfaces has, or the zero Addr.
func (h *Host) held() netip.Addr {
	for _, f := range h.Fronts {
		if addr := f.Addr.Addr(); !addr.IsUnspecified() && h.holder(addr) != nil {
			return addr
		}
	}
	return netip.Addr{}
}
