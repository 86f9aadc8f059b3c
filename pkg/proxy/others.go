package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// This file is what claims know of holders that are no Services, and who of them came first.

// fixLate says which claims of Nodes came late, instead of finding out.
func (c *claims) fixLate(list []LateClaim) {
	c.late = map[LateClaim]bool{}
	for _, l := range list {
		c.late[l] = true
	}
}

// isLate says whether a Node claimed an address after a Service had asked for it.
func (c *claims) isLate(addr netip.Addr, node string) bool {
	if c.late != nil {
		return c.late[LateClaim{addr, node}]
	}
	return !slices.Contains(c.first[addr], node)
}

// settleFirst finds who came first to addresses for which Services have begun to ask. Nodes that have such an address by then keep it while the
// Services ask for it, also if they lose it in between; Nodes that claim it later are late.
func (c *claims) settleFirst() {
	for addr, before := range c.asked {
		now := len(c.external[addr]) > 0
		switch {
		case now && !before:
			nodes := slices.Concat(c.claimed[addr], c.podNodes(addr))
			if !c.running {
				nodes = slices.DeleteFunc(nodes, func(node string) bool { return !c.nodeFirst(addr, node) })
			}
			if len(nodes) > 0 {
				c.first[addr] = nodes
			}
		case before && !now:
			delete(c.first, addr)
		}
	}
	c.asked = emptied(c.asked)
}

// nodeFirst decides at start, when nothing but their age is known of a Node and of the Services that ask for its address: the older wins. An
// address that a controller wrote into a Service's status is the Service's, unless it is the one by which the Node itself is reached: then the
// nodes are the load balancer, as with klipper.
func (c *claims) nodeFirst(addr netip.Addr, node string) bool {
	n := c.nodes[node]
	for key := range c.external[addr] {
		for _, one := range c.fronts[key] {
			older := one.by.created < n.Created.Unix()
			switch one.ask().kind() {
			case ExternalIP:
				if older {
					return false
				}
			case LoadBalancer:
				if !slices.Contains(n.Primary, addr) && (older || slices.Contains(n.Addresses, addr)) {
					return false
				}
			}
		}
	}
	return true
}

// setNode takes what a Node claims; nil: it is gone.
func (c *claims) setNode(name string, now *NodeClaim) {
	before, known := c.nodes[name]
	if now == nil && !known || now != nil && known && before.equal(now) {
		return
	}
	next := NodeClaim{}
	if delete(c.nodes, name); now != nil {
		next = *now
		c.nodes[name] = next
		c.suspects[name] = struct{}{}
	}
	if name == c.node {
		c.findOwn()
		c.reconsiderAll()
		return
	}
	for _, addr := range before.Addresses {
		if !slices.Contains(next.Addresses, addr) {
			c.reconsider(addr)
			remove(c.claimed, addr, name)
		}
	}
	for _, addr := range next.Addresses {
		if !slices.Contains(before.Addresses, addr) {
			c.claimed[addr] = insert(c.claimed[addr], name)
			c.reconsider(addr)
		}
	}
	if !slices.Equal(before.PodRanges, next.PodRanges) {
		c.moveRanges(name, before.PodRanges, next.PodRanges)
	}
}

// moveRanges takes the ranges of a Node's pods, which seldom change.
func (c *claims) moveRanges(name string, before, now []netip.Prefix) {
	length := func(p netip.Prefix) int {
		if p.Addr().Is4() {
			return p.Bits()
		}
		return -p.Bits()
	}
	sane := func(list []netip.Prefix) []netip.Prefix {
		return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return p.Bits() < widest(p) })
	}
	before, now = sane(before), sane(now)
	for _, p := range before {
		remove(c.ranges, p, name)
		if c.lengths[length(p)]--; c.lengths[length(p)] == 0 {
			delete(c.lengths, length(p))
		}
	}
	for _, p := range now {
		c.ranges[p] = insert(c.ranges[p], name)
		c.lengths[length(p)]++
	}
	for addr := range c.external {
		if slices.ContainsFunc(slices.Concat(before, now), func(p netip.Prefix) bool { return p.Contains(addr) }) {
			c.reconsider(addr)
		}
	}
}

func widest(p netip.Prefix) int {
	if p.Addr().Is4() {
		return widestRange4
	}
	return widestRange6
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

// setHost takes what this host has.
func (c *claims) setHost(h Host) {
	h.Addresses, h.NextHops = sorted(h.Addresses, netip.Addr.Compare), sorted(h.NextHops, netip.Addr.Compare)
	if slices.Equal(h.Addresses, c.holders.Host.Addresses) && slices.Equal(h.NextHops, c.holders.Host.NextHops) {
		return
	}
	c.holders.Host = h
	c.findOwn()
	c.reconsiderAll()
}

// findOwn finds the addresses of this host: those that it has, and those that its Node claims. Link-local ones come and go with every pod and are
// no Service's.
func (c *claims) findOwn() {
	c.own = map[netip.Addr]bool{}
	for _, addr := range slices.Concat(c.holders.Host.Addresses, c.nodes[c.node].Addresses) {
		if !addr.IsLinkLocalUnicast() && !addr.IsLoopback() {
			c.own[addr] = true
		}
	}
}

// setServiceRanges takes the ranges of cluster IPs.
func (c *claims) setServiceRanges(ranges []netip.Prefix) {
	ranges = sorted(ranges, netip.Prefix.Compare)
	if slices.Equal(ranges, c.holders.ServiceRanges) {
		return
	}
	c.holders.ServiceRanges = ranges
	c.reconsiderAll()
	for name := range c.nodes {
		c.suspects[name] = struct{}{}
	}
}

// setServers takes the endpoints of the API server.
func (c *claims) setServers(endpoints []netip.AddrPort) {
	all := slices.Concat(c.holders.APIServers, endpoints)
	slices.SortFunc(all, netip.AddrPort.Compare)
	if all = slices.Compact(all); slices.Equal(all, c.servers) {
		return
	}
	c.servers = all
	c.reconsiderAll()
}

// disbelieved says which addresses a Node claims that are others', "" for none.
func (c *claims) disbelieved(name string) string {
	n, ok := c.nodes[name]
	if !ok || name == c.node {
		return ""
	}
	var parts []string
	for _, addr := range n.Addresses {
		if of := c.holderOf(addr, name); of != "" {
			parts = append(parts, fmt.Sprintf("%s is %s", addr, of))
		}
	}
	if n.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("of %d addresses the first %d count", n.Dropped+len(n.Addresses), maxNodeAddresses))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("Node status.addresses: %s: want addresses of this Node alone", strings.Join(parts, "; "))
}

// holderOf is who has an address that a Node claims; "": none whose right is better.
func (c *claims) holderOf(addr netip.Addr, node string) string {
	if list := c.cluster[addr]; len(list) > 0 {
		return "the cluster IP of Service " + list[0].name.String()
	}
	if i := slices.IndexFunc(c.holders.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(addr) }); i >= 0 {
		return fmt.Sprintf("in %s, the range of cluster IPs", c.holders.ServiceRanges[i])
	}
	if !c.isLate(addr, node) {
		return ""
	}
	var has []*entry
	for key := range c.external[addr] {
		if e := c.holder(key); e != nil {
			has = append(has, e)
		}
	}
	if len(has) == 0 {
		return ""
	}
	return fmt.Sprintf("an address of Service %s, which had it before", slices.MinFunc(has, olderEntry).name)
}

// snapshot is what the decisions rest on, beside the Services.
func (c *claims) snapshot() Holders {
	out := c.holders
	out.Nodes = slices.Collect(maps.Values(c.nodes))
	for addr := range c.external {
		for _, node := range slices.Concat(c.claimed[addr], c.podNodes(addr)) {
			if c.isLate(addr, node) {
				out.Late = append(out.Late, LateClaim{addr, node})
			}
		}
	}
	slices.SortFunc(out.Late, compareLate)
	out.Late = slices.Compact(out.Late)
	return out
}
