package routes

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Known is what Plan holds against the Nodes, whose kubelets write their own addresses and annotations and may choose their own range when they
// register. None of it comes from another node. The zero Known knows nothing: ranges are then held against each other alone.
type Known struct {
	// ClusterCIDRs are the ranges of all pods (--cluster-cidr). None: they are learnt from the Nodes.
	ClusterCIDRs []netip.Prefix
	Services     []netip.Prefix // from which the cluster takes service addresses
	APIServers   []netip.Addr   // at which the API server is reached
	// Networks are those of this host's interfaces, each as an address of this host with the length of the network (10.1.0.11/24).
	Networks []netip.Prefix
	// Before is what was planned last, or else found on the host: a node that had an address or a tunnel's end keeps it when another one reports it.
	Before State
}

// How ranges are learnt. The controller manager cuts one block into ranges of one length and goes through it in order. Blocks of up to 4,096 ranges
// are common, which is enough for the Nodes that Kubernetes has room for; in one, no two ranges are further apart than that, however many Nodes came
// and went. IPv6 has room, and administrators who number nodes manually do it in the third group (fd00:244:1::/64), which is 65,536 ranges on each time. Further
// away, a quorum of Nodes vouch for each other, and the oldest Node for itself: a single Node that lies is neither.
const (
	reach4 = 12 // in bits
	reach6 = 20
	quorum = 3
)

// family is what is learnt of one address family.
type family struct {
	bits   int           // length of the ranges; 0: nothing is learnt
	reach  int           // bits of ranges that are near each other
	often  [129]bool     // lengths that a quorum has
	blocks map[ord]block // aligned, each of so many ranges
	first  netip.Prefix  // of those that are believed, for people
	last   netip.Prefix
}

// block is what is there of a block.
type block struct {
	at          ord
	first, last ord
	lo, hi      netip.Prefix // the ranges there
	nodes       int
	of          *asker // the last that was counted
	sure        bool   // has the range of this node, or of the oldest
	believed    bool
}

// ord is a place among the ranges of one length.
type ord struct{ hi, lo uint64 }

// ordinal is the place of an address among ranges of a length.
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

// near says whether two places, the lower first, are less than 2^reach apart.
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

// learn finds out from the Nodes where the cluster's ranges are, and which of them hold addresses of Nodes.
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

// learnLength takes the length of this node's range, or else that which most Nodes have; of two, that of the older.
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
	var b block // the last, which is usually the next too
	var oldest *asker
	root := p.own // whose range is believed in any case, unless the oldest Node is older
	for i := range p.candidates {
		c := &p.candidates[i]
		if c.dst.Addr().Is4() != four || !f.length(c.dst) {
			continue
		}
		if oldest == nil { // this node, which comes first, or without its range the oldest
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

// joinBlocks puts neighbouring blocks together and decides which are believed.
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

// length says whether ranges of that length are to be expected.
func (f *family) length(dst netip.Prefix) bool {
	return dst.Bits() == f.bits || f.often[dst.Bits()] && dst.Bits() > 0 && !dst.IsSingleIP()
}

// where is what is believed, for people.
func (f *family) where() string {
	if f.first == f.last {
		return f.first.String()
	}
	return fmt.Sprintf("%s to %s", f.first, f.last)
}

// crowd is whose addresses lie in a range.
type crowd struct {
	by   *asker
	addr netip.Addr
	more bool // another Node's too
}

// crowd finds the ranges in which Nodes' addresses may lie.
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

// believe says whether a range of another node may be led there at all. What no cluster would give to a Node is refused.
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

// doubtPlace holds a range against the cluster's.
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

// connected is the network of this host that a range would take a piece of; invalid: none. A network with exactly the range is left to Apply, which
// finds the route of others in the way, unless it is one by which this host is reached.
func (p *planner) connected(dst netip.Prefix) netip.Prefix {
	for _, n := range p.opts.Known.Networks {
		if !n.Overlaps(dst) || slices.ContainsFunc(p.candidates, func(c candidate) bool { return c.of.own && c.dst.Overlaps(n) }) { // our own pods'
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

// ofControlPlane says that an administrator has: a kubelet may not set these labels itself (NodeRestriction).
func ofControlPlane(n *v1.Node) bool {
	_, now := n.Labels["node-role.kubernetes.io/control-plane"]
	_, before := n.Labels["node-role.kubernetes.io/master"]
	return now || before
}
