// Package routes turns the watch of Nodes into routes to other nodes' pods in the host's routing table (proxy).
//
//	Nodes --watch--> Plan(mode, self, nodes, options) State --> Apply(ctx, table, State): list once, diff, change
//
// In overlay mode a route leads into the tunnel device that the kubelet maintains, and each other node is a Peer of
// that device.
//
// Plan is pure. Manager watches, plans, applies, and repairs what others remove. RoutingTable has one implementation
// per OS.
package routes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/vxlan"
)

// Mode says who maintains the routes to other nodes' pods.
type Mode string

const (
	HostGateway Mode = "host-gateway" // a route on every host, written here
	Upstream    Mode = "upstream"     // routers know the pod CIDRs; nothing is written here
	Overlay     Mode = "overlay"      // a route into the tunnel and the tunnel's entries, written here
	External    Mode = "external"     // another program's network; nothing is written here
	CNI         Mode = "cni"          // a plugin's network, which maintains its own routes; nothing is written here
)

// NextHop is the kind of next-hop address in routes to other nodes' pods.
type NextHop string

const (
	NodeIP     NextHop = "nodeIP"      // the other node's InternalIP; works in every LAN
	PodGateway NextHop = "pod-gateway" // the first address of the other node's pod CIDR, on the interface that leads to that node
)

// Options are an administrator's choices.
type Options struct {
	NextHop NextHop // "" is NodeIP
	// Tunnel4 says that this host's tunnel carries only IPv4, as overlays of Windows do. IPv6 ranges are ignored
	// without a Problem.
	Tunnel4 bool
	Known   Known
}

// Route is the route to the pods of one other node, in one address family.
type Route struct {
	Dst  netip.Prefix // that node's pod CIDR, masked
	Via  netip.Addr   // next hop
	Peer netip.Addr   // that node's InternalIP; the interface towards it carries the route. Not compared.
	Src  netip.Addr   // source address for this host's own packets; the zero Addr leaves the choice to the host
	Node string       // for messages. Not compared.
	// Device is the tunnel that carries the route; "": the interface towards Peer.
	Device string
}

// String returns the route as `ip route` writes it.
func (r Route) String() string {
	s := fmt.Sprintf("%s via %s", r.Dst, r.Via)
	if r.Device != "" {
		return s + fmt.Sprintf(" dev %s onlink", r.Device)
	}
	if r.Via != r.Peer && r.Peer.IsValid() {
		s += fmt.Sprintf(" towards %s", r.Peer)
	}
	if r.Src.IsValid() {
		s += fmt.Sprintf(" src %s", r.Src)
	}
	return s
}

// Peer is another node's end of the tunnel, in one address family.
type Peer struct {
	Device string // on this host
	Inner  netip.Addr
	MAC    vxlan.MAC  // hardware address of Inner: the neighbour entry
	Public netip.Addr // destination of frames to MAC: the forwarding entry
	Node   string     // for messages. Not compared.
}

// String returns the Peer as `ip neighbour` and `bridge fdb` write it.
func (p Peer) String() string {
	return fmt.Sprintf("%s lladdr %s dst %s dev %s", p.Inner, p.MAC, p.Public, p.Device)
}

// State is all of our routes that this host should have, sorted by destination, and all peers of its tunnels, sorted by
// Inner. The zero State is empty.
type State struct {
	Routes []Route
	Peers  []Peer
}

// String prints one route or peer per line, each with its node.
func (s State) String() string {
	if len(s.Routes) == 0 {
		return "no routes\n"
	}
	var b strings.Builder
	for _, r := range s.Routes {
		fmt.Fprintf(&b, "%s # %s\n", r, r.Node)
	}
	for _, p := range s.Peers {
		fmt.Fprintf(&b, "%s # %s\n", p, p.Node)
	}
	return b.String()
}

// Reasons of Problems, as Events show them.
const (
	NoPodCIDR      = "PodCIDRMissing"
	BadPodCIDR     = "PodCIDRInvalid"
	PodCIDRTaken   = "PodCIDROverlaps"
	PodCIDRRefused = "PodCIDRRefused"
	NoNodeAddress  = "NodeAddressMissing"
	AddressRefused = "NodeAddressRefused"
	NoTunnel       = "TunnelMissing"
	BadTunnel      = "TunnelInvalid"
	ForeignRoute   = "RouteConflict"
)

// Problem says why there is no route to a node's pods.
type Problem struct {
	Node    string
	Reason  string
	Message string
	// Here says that the problem cuts off pods of this host, not only those of another: this host's own Node reports it
	// too.
	Here bool
	To   netip.Prefix // with Here, the pods that this host's pods cannot reach; invalid: others cannot reach this host's pods
}

// String formats the problem for logs.
func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Node, p.Reason, p.Message) }

// ParseMode parses a mode that a user typed.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case HostGateway, Upstream, Overlay, External, CNI:
		return m, nil
	}
	return "", fmt.Errorf("network mode %q is not known; want %s, %s, %s, %s or %s", s, HostGateway, Upstream, Overlay, External, CNI)
}

// Plan computes the routes of the node self. It is pure: the order of nodes does not matter. A node for which no route
// can be planned is a Problem and does not affect the others. If two nodes claim the same addresses, the older one gets
// the route. What kubelets write to their Nodes is first checked against opts.Known and the other Nodes (believe.go,
// hop.go). self need not be among nodes (a control plane host, a node that is not registered yet).
func Plan(mode Mode, self string, nodes []*v1.Node, opts Options) (State, []Problem) {
	if mode != HostGateway && mode != Overlay {
		return State{}, nil
	}
	p := planners.Get().(*planner)
	defer planners.Put(p)
	p.reset(self, mode == Overlay, opts)
	p.state.Routes = make([]Route, 0, len(nodes))
	if p.overlay {
		p.state.Peers = make([]Peer, 0, len(nodes))
	}
	defer p.forget()
	p.read(nodes)
	p.learn()
	for i := range p.candidates {
		if c := &p.candidates[i]; c.of.own || p.believe(c) {
			c.taken = p.take(c)
		}
	}
	for i := range p.candidates {
		if c := &p.candidates[i]; c.taken && !c.of.own {
			p.route(c)
		}
	}
	slices.SortFunc(p.state.Routes, func(a, b Route) int { return comparePrefixes(a.Dst, b.Dst) })
	slices.SortFunc(p.state.Peers, func(a, b Peer) int { return a.Inner.Compare(b.Inner) })
	slices.SortFunc(p.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Message, b.Message))
	})
	return p.state, p.problems
}

type planner struct {
	self       string
	own        *asker // nil: this host is not a node
	opts       Options
	overlay    bool
	askers     []asker     // this node first, then oldest first
	candidates []candidate // in the same order
	addrs      []netip.Addr
	learnt     [2]family
	crowded    map[netip.Prefix]crowd
	labelled   bool // whether any Node has a control plane label
	state      State
	problems   []Problem
	taken      ranges
	hops       map[netip.Addr]*candidate // by next hop or tunnel's end
	ends       map[tunnelEnd]*candidate
}

// planners are pooled to reuse memory: each change of one node plans for all.
var planners = sync.Pool{New: func() any {
	return &planner{taken: ranges{of: map[netip.Prefix]string{}}, hops: map[netip.Addr]*candidate{}, ends: map[tunnelEnd]*candidate{}, crowded: map[netip.Prefix]crowd{},
		learnt: [2]family{{blocks: map[ord]block{}}, {blocks: map[ord]block{}}}}
}}

// reset empties a planner but keeps its memory.
func (p *planner) reset(self string, overlay bool, opts Options) {
	*p = planner{self: self, overlay: overlay, opts: opts, askers: p.askers[:0], candidates: p.candidates[:0], addrs: p.addrs[:0],
		taken: ranges{of: p.taken.of, lengths: p.taken.lengths[:0]}, hops: p.hops, ends: p.ends, crowded: p.crowded, learnt: [2]family{{blocks: p.learnt[0].blocks}, {blocks: p.learnt[1].blocks}}}
}

// forget drops references to the input of a plan.
func (p *planner) forget() {
	clear(p.askers)
	clear(p.candidates)
	clear(p.taken.of)
	clear(p.hops)
	clear(p.ends)
	clear(p.crowded)
	for i := range p.learnt {
		clear(p.learnt[i].blocks)
	}
	p.state, p.problems, p.own, p.opts = State{}, nil, nil, Options{}
}

// asker is a Node with the parts that are read more than once.
type asker struct {
	node  *v1.Node
	since int64        // creation time in seconds
	addrs []netip.Addr // its InternalIPs
	own   bool         // it is this host's Node
}

// olderThan breaks ties by name.
func (a *asker) olderThan(b *asker) bool {
	return a.since < b.since || a.since == b.since && a.node.Name < b.node.Name
}

// candidate is one range of spec.podCIDRs.
type candidate struct {
	of    *asker
	dst   netip.Prefix
	taken bool
}

func (c *candidate) node() string { return c.of.node.Name }

// tunnelEnd is the key of a tunnel's forwarding entry.
type tunnelEnd struct {
	four bool // address family of the device
	mac  vxlan.MAC
}

// read parses the nodes: this one first, then oldest first.
func (p *planner) read(nodes []*v1.Node) {
	for _, n := range nodes {
		from := len(p.addrs)
		p.addrs = internalIPs(p.addrs, n)
		p.askers = append(p.askers, asker{node: n, since: n.CreationTimestamp.Unix(), addrs: p.addrs[from:len(p.addrs):len(p.addrs)], own: n.Name == p.self})
	}
	slices.SortFunc(p.askers, func(a, b asker) int {
		if a.own != b.own {
			if a.own {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.node.Name, b.node.Name))
	})
	for i := range p.askers {
		a := &p.askers[i]
		if a.own {
			p.own = a
			p.ownEnds()
		}
		p.labelled = p.labelled || ofControlPlane(a.node)
		p.readRanges(a)
	}
}

func (p *planner) readRanges(a *asker) {
	n := a.node
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	if len(cidrs) == 0 && !a.own {
		p.problem(n, NoPodCIDR, "the Node has no spec.podCIDRs; does the controller manager run with --allocate-node-cidrs?")
	}
	for _, s := range cidrs {
		dst, err := netip.ParsePrefix(s)
		if err != nil {
			p.problem(n, BadPodCIDR, fmt.Sprintf("spec.podCIDRs has %q; want an address range like 10.244.1.0/24", s))
			continue
		}
		p.candidates = append(p.candidates, candidate{of: a, dst: dst.Masked()})
	}
}

// take assigns the range to its node unless it overlaps with another node's range.
func (p *planner) take(c *candidate) bool {
	n, dst := c.of.node, c.dst
	other := p.taken.overlapping(dst)
	switch {
	case other == "":
	case other == p.self && !c.of.own:
		p.problem(n, PodCIDRTaken, fmt.Sprintf("pod CIDR %s overlaps with that of this node %s", dst, other))
		if c.of.olderThan(p.own) {
			p.problems = append(p.problems, Problem{Node: p.self, Reason: PodCIDRTaken, Here: true, Message: fmt.Sprintf(
				"the pod CIDR overlaps with %s of node %s, which is older: other nodes send traffic for pods of %s there; delete this Node, so that it registers again with another range", dst, n.Name, p.self)})
		}
		return false
	case other != n.Name:
		p.problem(n, PodCIDRTaken, fmt.Sprintf("pod CIDR %s overlaps with that of node %s, which is older and keeps its route", dst, other))
		return false
	default:
		p.problem(n, PodCIDRTaken, fmt.Sprintf("pod CIDR %s overlaps with another of the same Node", dst))
		return false
	}
	p.taken.add(dst, n.Name)
	return true
}

func (p *planner) route(c *candidate) {
	if p.overlay {
		p.tunnel(c)
		return
	}
	peer, ok := ofFamily(c.of.addrs, c.dst.Addr())
	if !ok {
		p.problem(c.of.node, NoNodeAddress, fmt.Sprintf("pod CIDR %s needs an InternalIP of its address family in status.addresses; there is none", c.dst))
		return
	}
	if p.cutsOff(c, peer) || !p.hop(c, "InternalIP", peer) {
		return
	}
	r := Route{Dst: c.dst, Via: peer, Peer: peer, Node: c.node()}
	if p.own != nil {
		r.Src, _ = ofFamily(p.own.addrs, c.dst.Addr())
	}
	if p.opts.NextHop == PodGateway {
		r.Via = c.dst.Addr().Next()
	}
	p.state.Routes = append(p.state.Routes, r)
}

// cutsOff refuses a range that contains its own node's address.
func (p *planner) cutsOff(c *candidate, addr netip.Addr) bool {
	if !c.dst.Contains(addr) {
		return false
	}
	p.problem(c.of.node, PodCIDRTaken, fmt.Sprintf("pod CIDR %s holds the node address %s; a route to it would cut that node off", c.dst, addr))
	return true
}

// tunnel routes a range to the end of its node's tunnel. As in flannel, the inner next hop is the first address of the
// range.
func (p *planner) tunnel(c *candidate) {
	n, dst := c.of.node, c.dst
	if p.opts.Tunnel4 && !dst.Addr().Is4() {
		return
	}
	end, err := vxlan.Parse(n.Annotations, dst.Addr())
	if err != nil {
		reason := BadTunnel
		if errors.Is(err, vxlan.ErrNone) {
			reason = NoTunnel
		}
		p.problem(n, reason, fmt.Sprintf("pod CIDR %s: %v", dst, err))
		return
	}
	if p.cutsOff(c, end.Public) || !p.end(c, end.MAC) || !p.hop(c, "public address of its tunnel", end.Public) {
		return
	}
	device := vxlan.DeviceName(dst.Addr().Is4())
	p.ends[tunnelEnd{dst.Addr().Is4(), end.MAC}] = c
	p.state.Routes = append(p.state.Routes, Route{Dst: dst, Via: dst.Addr(), Peer: end.Public, Node: n.Name, Device: device})
	p.state.Peers = append(p.state.Peers, Peer{Device: device, Inner: dst.Addr(), MAC: end.MAC, Public: end.Public, Node: n.Name})
}

func (p *planner) problem(n *v1.Node, reason, message string) {
	p.problems = append(p.problems, Problem{Node: n.Name, Reason: reason, Message: message})
}

// internalIPs appends a node's addresses of type InternalIP to out, in order, and skips strings that are not IP
// addresses.
func internalIPs(out []netip.Addr, n *v1.Node) []netip.Addr {
	for _, a := range n.Status.Addresses {
		if a.Type != v1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

func ofFamily(addrs []netip.Addr, like netip.Addr) (netip.Addr, bool) {
	for _, a := range addrs {
		if a.Is4() == like.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
