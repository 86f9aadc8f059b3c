package routes

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/pkg/vxlan"
)

// A kubelet can write any address and tunnel into its own Node at any time. It cannot change its Node's age or, once
// assigned, its range. So age must not decide about addresses: an old Node could take them from a younger one. The
// range that had the address keeps it. If no range had it, both get a route, which misdirects only packets for the pods
// of the Node that lies.

// hop decides whether packets for c may be sent to addr, which its node reports as its own.
func (p *planner) hop(c *candidate, what string, addr netip.Addr) bool {
	refuse := func(c *candidate, format string, args ...any) bool {
		p.problem(c.of.node, AddressRefused, fmt.Sprintf("%s %s %s; no route leads to pod CIDR %s; want an address that only this Node has", what, addr, fmt.Sprintf(format, args...), c.dst))
		return false
	}
	if p.ofHost(addr) {
		return refuse(c, "is an address of node %s", p.self)
	}
	if p.labelled && slices.Contains(p.opts.Known.APIServers, addr) && !ofControlPlane(c.of.node) {
		return refuse(c, "is the address of the API server, and the Node has no label node-role.kubernetes.io/control-plane")
	}
	if other := p.taken.holder(addr); other != "" && other != c.node() {
		return refuse(c, "lies in the pod CIDR of node %s", other)
	}
	other := p.hops[addr]
	if other == nil || other.of == c.of {
		p.hops[addr] = c
		return true
	}
	had := func(c *candidate) bool {
		return slices.ContainsFunc(p.opts.Known.Before.Routes, func(r Route) bool { return r.Peer == addr && r.Dst == c.dst })
	}
	switch mine, theirs := had(c), had(other); {
	case theirs && !mine:
		return refuse(c, "is the address of node %s, which had it before", other.node())
	case mine && !theirs:
		refuse(other, "is the address of node %s, which had it before", c.node())
		p.drop(other)
		p.hops[addr] = c
	default:
		p.problem(c.of.node, AddressRefused, fmt.Sprintf("%s %s is also the address of node %s, which receives the packets for pods of both; want an address that only this Node has", what, addr, other.node()))
	}
	return true
}

// ofHost reports whether addr is one of this host's addresses.
func (p *planner) ofHost(addr netip.Addr) bool {
	return p.own != nil && slices.Contains(p.own.addrs, addr) ||
		slices.ContainsFunc(p.opts.Known.Networks, func(n netip.Prefix) bool { return n.Addr() == addr })
}

// drop withdraws the route to a range.
func (p *planner) drop(c *candidate) {
	p.state.Routes = slices.DeleteFunc(p.state.Routes, func(r Route) bool { return r.Dst == c.dst })
	p.state.Peers = slices.DeleteFunc(p.state.Peers, func(peer Peer) bool { return peer.Inner == c.dst.Addr() })
}

// ownEnds records the hardware addresses of this node's own tunnels.
func (p *planner) ownEnds() {
	if !p.overlay {
		return
	}
	for _, like := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if end, err := vxlan.Parse(p.own.node.Annotations, like); err == nil {
			p.ends[tunnelEnd{like.Is4(), end.MAC}] = &candidate{of: p.own}
		}
	}
}

// end decides which node keeps a tunnel's hardware address, the key of its forwarding entry: the node from whose range
// it is derived, else the node that had it before, else the older node.
func (p *planner) end(c *candidate, mac vxlan.MAC) bool {
	other := p.ends[tunnelEnd{c.dst.Addr().Is4(), mac}]
	if other == nil {
		return true
	}
	rank := func(c *candidate) int {
		switch {
		case c.of.own:
			return 3
		case vxlan.NewDevice(c.dst, c.dst.Addr(), 0).MAC == mac:
			return 2
		case slices.ContainsFunc(p.opts.Known.Before.Peers, func(peer Peer) bool { return peer.MAC == mac && peer.Inner == c.dst.Addr() }):
			return 1
		}
		return 0
	}
	refuse := func(c, keeps *candidate, rank int) {
		why := []string{"which is older and keeps it", "which had it before", "from whose pod CIDR it is made", "which is this one"}[rank]
		p.problem(c.of.node, BadTunnel, fmt.Sprintf("the end of its tunnel has hardware address %s, as that of node %s, %s", mac, keeps.node(), why))
	}
	mine, theirs := rank(c), rank(other)
	if mine > theirs {
		refuse(other, c, mine)
		p.drop(other)
		return true
	}
	refuse(c, other, theirs)
	return false
}
