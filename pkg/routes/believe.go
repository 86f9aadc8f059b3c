package routes

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Known is what Plan checks Nodes against. Kubelets write their own addresses and annotations, and may choose their own
// range when they register. None of Known comes from another node. With the zero Known, ranges are checked only against
// each other.
type Known struct {
	// ClusterCIDRs are the ranges of all pods (--cluster-cidr). None: they are learnt from the Nodes.
	ClusterCIDRs []netip.Prefix
	Services     []netip.Prefix // ranges of the cluster's service addresses
	APIServers   []netip.Addr   // addresses of the API server
	// Networks are those of this host's interfaces, each as an address of this host with its prefix length
	// (10.1.0.11/24).
	Networks []netip.Prefix
	// Before is the last plan, or else what the host had at start: a node keeps its address or tunnel end when another
	// node reports the same one.
	Before State
}

// How the cluster's ranges are learnt. The controller manager splits one block into ranges of one length and assigns
// them in order. Blocks of up to 4,096 ranges are common, which is enough for the Nodes that Kubernetes supports;
// ranges in one block are never further apart than that, however many Nodes came and went. IPv6 has more space:
// administrators who number nodes manually use the third group (fd00:244:1::/64), so neighbours are 65,536 ranges
// apart. Ranges further away are believed if they have a quorum of Nodes or the oldest Node: a single Node that lies is
// neither.
const (
	reach4 = 12 // in bits
	reach6 = 20
	quorum = 3
)

// family is what was learnt about one address family.
type family struct {
	bits   int           // length of the ranges; 0: unknown
	reach  int           // ranges less than 2^reach apart are near each other
	often  [129]bool     // lengths that a quorum of Nodes has
	blocks map[ord]block // aligned; each spans 2^reach ranges
	first  netip.Prefix  // first of the believed ranges, for messages
	last   netip.Prefix
}

// block describes the ranges in one aligned block.
type block struct {
	at          ord
	first, last ord
	lo, hi      netip.Prefix // lowest and highest range
	nodes       int
	of          *asker // the last Node that was counted
	sure        bool   // contains the range of this node or of the oldest one
	believed    bool
}

// ord is the index of a range among all ranges of one length.
type ord struct{ hi, lo uint64 }

// ordinal returns the index of the range of a length that contains a.
func ordinal(a netip.Addr, length int) (o ord) {
	if a.Is4() {
		b := a.As4()
		o.lo = uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
		return o.over(32 - length)
	}
	b := a.As16()
	for i := range 8 {
		o.hi, o.lo = o.hi<<8|uint64(b[i]), o.lo<<8|uint64(b[i+8])
	}
	return o.over(128 - length)
}

// over divides by 2^n, n up to 128.
func (o ord) over(n int) ord {
	if n >= 64 {
		return ord{lo: o.hi >> (n - 64)}
	}
	return ord{hi: o.hi >> n, lo: o.lo>>n | o.hi<<(64-n)}
}

// near reports whether two indexes, lower first, are less than 2^reach apart.
func near(a, b ord, reach int) bool {
	lo, borrow := bits.Sub64(b.lo, a.lo, 0)
	hi, _ := bits.Sub64(b.hi, a.hi, borrow)
	return hi == 0 && lo>>reach == 0
}

func compareOrd(a, b ord) int { return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo)) }

func at(four bool) int {
	if four {
		return 0
	}
	return 1
}

// learn finds out where the cluster's ranges are, and which of them contain addresses of Nodes.
func (p *planner) learn() {
	p.crowd()
	if len(p.opts.Known.ClusterCIDRs) > 0 {
		return
	}
	for _, four := range []bool{true, false} {
		f := &p.learnt[at(four)]
		if f.reach = reach6; four {
			f.reach = reach4
		}
		if p.learnLength(f, four); f.bits > 0 {
			p.learnBlocks(f, four)
		}
	}
}

// learnLength picks the length of this node's range, or else the most common length; on a tie, that of the older Node.
func (p *planner) learnLength(f *family, four bool) {
	var times [129]int
	best, of := -1, (*asker)(nil)
	for i := range p.candidates {
		c := &p.candidates[i]
		if c.dst.Addr().Is4() != four {
			continue
		}
		if c.of.own && f.bits == 0 {
			f.bits = c.dst.Bits()
		}
		if c.of == of {
			continue
		}
		of = c.of
		times[c.dst.Bits()]++
	}
	for i := range p.candidates {
		if c := &p.candidates[i]; c.dst.Addr().Is4() == four && (best < 0 || times[c.dst.Bits()] > times[best]) {
			best = c.dst.Bits()
		}
	}
	if f.bits == 0 {
		f.bits = max(best, 0)
	}
	for length, n := range times {
		f.often[length] = n >= quorum
	}
}

func (p *planner) learnBlocks(f *family, four bool) {
	var b block // the last one, which is usually also the next
	var oldest *asker
	root := p.own // its range is always believed, unless the oldest Node is older
	for i := range p.candidates {
		c := &p.candidates[i]
		if c.dst.Addr().Is4() != four || !f.length(c.dst) {
			continue
		}
		if oldest == nil { // this node, which is first; the oldest one if this node has no range
			if oldest = c.of; !c.of.own {
				root = nil
			}
		} else if oldest.own && c.of.olderThan(oldest) {
			oldest = c.of
		}
		o := ordinal(c.dst.Addr(), f.bits)
		key := o.over(f.reach)
		if b.nodes == 0 || b.at != key {
			if b.nodes > 0 {
				f.blocks[b.at] = b
			}
			b = f.blocks[key]
		}
		if b.nodes == 0 {
			b = block{at: key, first: o, last: o, lo: c.dst, hi: c.dst}
		}
		if compareOrd(o, b.first) < 0 {
			b.first, b.lo = o, c.dst
		}
		if compareOrd(o, b.last) > 0 {
			b.last, b.hi = o, c.dst
		}
		if b.of != c.of {
			b.of, b.nodes = c.of, b.nodes+1
		}
		b.sure = b.sure || c.of == root || c.of == oldest
	}
	if b.nodes > 0 {
		f.blocks[b.at] = b
	}
	f.joinBlocks()
}

// joinBlocks joins neighbouring blocks and decides which are believed.
func (f *family) joinBlocks() {
	all := make([]block, 0, len(f.blocks))
	for _, b := range f.blocks {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b block) int { return compareOrd(a.at, b.at) })
	for from := 0; from < len(all); {
		to, nodes, sure := from, 0, false
		for ; to < len(all) && (to == from || near(all[to-1].last, all[to].first, f.reach)); to++ {
			nodes, sure = nodes+all[to].nodes, sure || all[to].sure
		}
		for _, b := range all[from:to] {
			b.believed = sure || nodes >= quorum
			f.blocks[b.at] = b
			if !b.believed {
				continue
			}
			if !f.first.IsValid() {
				f.first = b.lo
			}
			f.last = b.hi
		}
		from = to
	}
}

// length reports whether dst has an expected length.
func (f *family) length(dst netip.Prefix) bool {
	return dst.Bits() == f.bits || f.often[dst.Bits()] && dst.Bits() > 0 && !dst.IsSingleIP()
}

// where describes the believed ranges for messages.
func (f *family) where() string {
	if f.first == f.last {
		return f.first.String()
	}
	return fmt.Sprintf("%s to %s", f.first, f.last)
}

// crowd says whose addresses are inside a range.
type crowd struct {
	by   *asker
	addr netip.Addr
	more bool // addresses of other Nodes too
}

// crowd finds the ranges that contain addresses of Nodes.
func (p *planner) crowd() {
	var lengths [2][129]bool
	for i := range p.candidates {
		lengths[at(p.candidates[i].dst.Addr().Is4())][p.candidates[i].dst.Bits()] = true
	}
	for family := range lengths {
		for length, there := range lengths[family] {
			if there {
				p.crowdOf(family, length)
			}
		}
	}
}

func (p *planner) crowdOf(family, length int) {
	var last netip.Prefix
	var c crowd
	for i := range p.askers {
		a := &p.askers[i]
		for _, addr := range a.addrs {
			if at(addr.Is4()) != family || c.more && last.Contains(addr) {
				continue
			}
			in, err := addr.Prefix(length)
			if err != nil {
				continue
			}
			if in != last {
				last, c = in, p.crowded[in]
			}
			if c.by == nil {
				c.by, c.addr = a, addr
			}
			c.more = c.more || c.by != a
			p.crowded[in] = c
		}
	}
}

// believe reports whether a route to another node's range is acceptable at all. It refuses ranges that no cluster would
// assign to a Node.
func (p *planner) believe(c *candidate) bool {
	reason, why := p.doubt(c)
	if why == "" {
		return true
	}
	p.problem(c.of.node, reason, why)
	return false
}

// doubt says what is wrong with a range; "": nothing.
func (p *planner) doubt(c *candidate) (reason, why string) {
	known, dst := &p.opts.Known, c.dst
	if dst.Bits() == 0 {
		return PodCIDRRefused, fmt.Sprintf("pod CIDR %s is every address; want a range for pods only", dst)
	}
	for _, s := range known.Services {
		if s.Overlaps(dst) {
			return PodCIDRRefused, fmt.Sprintf("pod CIDR %s overlaps with %s, the range of Service addresses; want a range for pods only", dst, s)
		}
	}
	for _, a := range known.APIServers {
		if dst.Contains(a) {
			return PodCIDRRefused, fmt.Sprintf("pod CIDR %s holds %s, an address of the API server; want a range for pods only", dst, a)
		}
	}
	if p.own != nil {
		for _, a := range p.own.addrs {
			if dst.Contains(a) {
				return PodCIDRTaken, fmt.Sprintf("pod CIDR %s holds the node address %s; a route to it would cut that node off", dst, a)
			}
		}
	}
	if n := p.connected(dst); n.IsValid() {
		return PodCIDRRefused, fmt.Sprintf("pod CIDR %s overlaps with %s, a network to which node %s is directly connected; want a range for pods only", dst, n.Masked(), p.self)
	}
	if in := p.crowded[dst]; in.more {
		return PodCIDRRefused, fmt.Sprintf("pod CIDR %s holds addresses of several Nodes, %s of node %s among them; want a range for pods only", dst, in.addr, in.by.node.Name)
	}
	return p.doubtPlace(dst)
}

// doubtPlace checks a range against the cluster's ranges.
func (p *planner) doubtPlace(dst netip.Prefix) (reason, why string) {
	if given := p.opts.Known.ClusterCIDRs; len(given) > 0 {
		if !slices.ContainsFunc(given, func(g netip.Prefix) bool { return g.Bits() <= dst.Bits() && g.Contains(dst.Addr()) }) {
			return PodCIDRRefused, fmt.Sprintf("pod CIDR %s is not inside of %s; want a range near the other Nodes', or set the proxy's --cluster-cidr to all ranges of pods", dst, prefixes(given))
		}
		if dst.IsSingleIP() && !p.ownLength(dst) {
			return PodCIDRRefused, fmt.Sprintf("pod CIDR %s is a single address; want a range", dst)
		}
		return "", ""
	}
	f := &p.learnt[at(dst.Addr().Is4())]
	if !f.length(dst) {
		return PodCIDRRefused, fmt.Sprintf("pod CIDR %s has a length of %d bits; want %d as the other Nodes' ranges have, or set the proxy's --cluster-cidr to all ranges of pods",
			dst, dst.Bits(), f.bits)
	}
	if !f.blocks[ordinal(dst.Addr(), f.bits).over(f.reach)].believed {
		return PodCIDRRefused, fmt.Sprintf("pod CIDR %s is far from those of the other Nodes, %s; want a range near the other Nodes', or set the proxy's --cluster-cidr to all ranges of pods",
			dst, f.where())
	}
	return "", ""
}

func (p *planner) ownLength(dst netip.Prefix) bool {
	return slices.ContainsFunc(p.candidates, func(c candidate) bool {
		return c.of.own && c.dst.Addr().Is4() == dst.Addr().Is4() && c.dst.Bits() == dst.Bits()
	})
}

// connected returns a network of this host that overlaps with a range; invalid: none. A network equal to the range is
// left to Apply, which finds the foreign route, unless this host's own address is in it.
func (p *planner) connected(dst netip.Prefix) netip.Prefix {
	for _, n := range p.opts.Known.Networks {
		if !n.Overlaps(dst) || slices.ContainsFunc(p.candidates, func(c candidate) bool { return c.of.own && c.dst.Overlaps(n) }) { // our own pods' network
			continue
		}
		if n.Masked() != dst || p.own == nil || slices.ContainsFunc(p.own.addrs, n.Masked().Contains) {
			return n
		}
	}
	return netip.Prefix{}
}

func prefixes(list []netip.Prefix) string {
	text := ""
	for i, p := range list {
		if i > 0 {
			text += ","
		}
		text += p.String()
	}
	return text
}

// ofControlPlane reports whether an administrator marked a Node as control plane: NodeRestriction forbids kubelets to
// set these labels.
func ofControlPlane(n *v1.Node) bool {
	_, now := n.Labels["node-role.kubernetes.io/control-plane"]
	_, before := n.Labels["node-role.kubernetes.io/master"]
	return now || before
}
