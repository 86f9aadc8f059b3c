package proxy

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// others are the holders other than Services, indexed by address.
type others struct {
	node    string                    // this node
	holders Holders                   // without Nodes and Late
	own     map[netip.Addr]bool       // addresses of this host
	servers []netip.AddrPort          // all API servers
	nodes   map[string]NodeHolding    // including this one
	nodesAt map[netip.Addr][]string   // other Nodes that have an address, sorted
	ranges  map[netip.Prefix][]string // other Nodes with that pod range, sorted
	lengths map[int]int               // number of ranges by prefix length; IPv6: negative
}

func newOthers(node string, holders Holders) others {
	holders.Nodes, holders.Late = nil, nil
	o := others{node: node, holders: holders, servers: holders.APIServers, nodes: map[string]NodeHolding{}, nodesAt: map[netip.Addr][]string{},
		ranges: map[netip.Prefix][]string{}, lengths: map[int]int{}}
	o.findOwn()
	return o
}

// touched is what a change of holders affects.
type touched struct {
	addrs  []netip.Addr
	ranges []netip.Prefix
	all    bool
}

// setNode records what a Node holds; nil: it is gone. changed is false if nothing differs.
func (o *others) setNode(name string, now *NodeHolding) (t touched, changed bool) {
	if now != nil && name != o.node && now.KubeletPort != 0 {
		far := *now
		far.KubeletPort, now = 0, &far
	}
	before, known := o.nodes[name]
	if now == nil && !known || now != nil && known && before.equal(now) {
		return t, false
	}
	next := NodeHolding{}
	if delete(o.nodes, name); now != nil {
		next = *now
		o.nodes[name] = next
	}
	if name == o.node {
		o.findOwn()
		return touched{all: true}, true
	}
	for _, addr := range before.Addresses {
		if !slices.Contains(next.Addresses, addr) {
			remove(o.nodesAt, addr, name)
			t.addrs = append(t.addrs, addr)
		}
	}
	for _, addr := range next.Addresses {
		if !slices.Contains(before.Addresses, addr) {
			o.nodesAt[addr] = insert(o.nodesAt[addr], name)
			t.addrs = append(t.addrs, addr)
		}
	}
	if !slices.Equal(before.PodRanges, next.PodRanges) {
		t.ranges = o.moveRanges(name, before.PodRanges, next.PodRanges)
	}
	return t, true
}

// moveRanges records the pod ranges of a Node, and returns the old and the new ones.
func (o *others) moveRanges(name string, before, now []netip.Prefix) []netip.Prefix {
	length := func(p netip.Prefix) int {
		if p.Addr().Is4() {
			return p.Bits()
		}
		return -p.Bits()
	}
	sane := func(list []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(slices.Clone(list), tooWide)
	}
	before, now = sane(before), sane(now)
	for _, p := range before {
		remove(o.ranges, p, name)
		if o.lengths[length(p)]--; o.lengths[length(p)] == 0 {
			delete(o.lengths, length(p))
		}
	}
	for _, p := range now {
		o.ranges[p] = insert(o.ranges[p], name)
		o.lengths[length(p)]++
	}
	return slices.Concat(before, now)
}

func tooWide(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() < widestRange4
	}
	return p.Bits() < widestRange6
}

func insert(list []string, name string) []string {
	at, is := slices.BinarySearch(list, name)
	if is {
		return list
	}
	return slices.Insert(list, at, name)
}

func remove[K comparable](m map[K][]string, key K, name string) {
	list := slices.DeleteFunc(m[key], func(have string) bool { return have == name })
	if m[key] = list; len(list) == 0 {
		delete(m, key)
	}
}

// ownPodRanges returns the ranges of this node's pods, sorted, without those that are too wide to be one node's.
func (o *others) ownPodRanges() []netip.Prefix {
	return slices.DeleteFunc(sorted(o.nodes[o.node].PodRanges, netip.Prefix.Compare), tooWide)
}

// podNodes returns the other Nodes whose pod range contains an address, sorted.
func (o *others) podNodes(addr netip.Addr) (out []string) {
	for length := range o.lengths {
		if addr.Is4() != (length >= 0) {
			continue
		}
		if p, err := addr.Prefix(max(length, -length)); err == nil {
			out = append(out, o.ranges[p]...)
		}
	}
	slices.Sort(out)
	return out
}

// setHost records the state of this host, and reports whether it changed.
func (o *others) setHost(h Host) bool {
	h.Addresses, h.NextHops = sorted(h.Addresses, netip.Addr.Compare), sorted(h.NextHops, netip.Addr.Compare)
	if slices.Equal(h.Addresses, o.holders.Host.Addresses) && slices.Equal(h.NextHops, o.holders.Host.NextHops) {
		return false
	}
	o.holders.Host = h
	o.findOwn()
	return true
}

// findOwn determines the addresses of this host: those of its interfaces, and those that its Node reports. It skips
// link-local ones, which change with every pod and never belong to a Service.
func (o *others) findOwn() {
	o.own = map[netip.Addr]bool{}
	for _, addr := range slices.Concat(o.holders.Host.Addresses, o.nodes[o.node].Addresses) {
		if !addr.IsLinkLocalUnicast() && !addr.IsLoopback() {
			o.own[addr] = true
		}
	}
}

// setServiceRanges records the ranges of cluster IPs, and reports whether they changed.
func (o *others) setServiceRanges(ranges []netip.Prefix) bool {
	ranges = sorted(ranges, netip.Prefix.Compare)
	if slices.Equal(ranges, o.holders.ServiceRanges) {
		return false
	}
	o.holders.ServiceRanges = ranges
	return true
}

// setServers records the endpoints of the API server, and reports whether they changed.
func (o *others) setServers(endpoints []netip.AddrPort) bool {
	all := slices.Concat(o.holders.APIServers, endpoints)
	slices.SortFunc(all, netip.AddrPort.Compare)
	if all = slices.Compact(all); slices.Equal(all, o.servers) {
		return false
	}
	o.servers = all
	return true
}

// reserved returns the program that has a port at every address of this host; "": Services may have it.
func (o *others) reserved(front FrontKey) string {
	kubelet := ReservedPort{o.nodes[o.node].KubeletPort, v1.ProtocolTCP, "the kubelet"}
	for _, list := range [][]ReservedPort{o.holders.Ports, ReservedPorts, {kubelet}} {
		if i := slices.IndexFunc(list, func(r ReservedPort) bool { return r.is(front) }); i >= 0 {
			return list[i].Of
		}
	}
	if front.Protocol() == v1.ProtocolTCP && slices.ContainsFunc(o.servers, func(s netip.AddrPort) bool { return s.Port() == front.port && o.own[s.Addr()] }) {
		return "the API server"
	}
	return ""
}
