package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// This file decides between Services and Nodes at one address: who came first.

// fixLate says which Nodes came late to which addresses, instead of finding out.
func (a *arbiter) fixLate(list []NodeAddress) {
	a.late = map[NodeAddress]bool{}
	for _, l := range list {
		a.late[l] = true
	}
}

// isLate says whether a Node came to hold an address after a Service had claimed it.
func (a *arbiter) isLate(addr netip.Addr, node string) bool {
	if a.late != nil {
		return a.late[NodeAddress{addr, node}]
	}
	return !slices.Contains(a.first[addr], node)
}

// decideFirst finds who came first to addresses that Services have begun to claim. Nodes that hold such an address by then keep it while Services
// claim it, also if they lose it in between; Nodes that get it later are late.
func (a *arbiter) decideFirst() {
	for addr, before := range a.claimed {
		now := len(a.external[addr]) > 0
		switch {
		case now && !before:
			nodes := slices.Concat(a.others.nodesAt[addr], a.others.podNodes(addr))
			if !a.running {
				nodes = slices.DeleteFunc(nodes, func(node string) bool { return !a.nodeFirst(addr, node) })
			}
			if len(nodes) > 0 {
				a.first[addr] = nodes
			}
		case before && !now:
			delete(a.first, addr)
		}
	}
	a.claimed = emptied(a.claimed)
}

// nodeFirst decides at start, when only the age of a Node and of the Services that claim its address is known: the older wins. An
// address that a controller wrote into a Service's status is the Service's, unless it is the one by which the Node itself is reached: then the
// nodes are the load balancer, as with klipper.
func (a *arbiter) nodeFirst(addr netip.Addr, node string) bool {
	n := a.others.nodes[node]
	for key := range a.external[addr] {
		for c := range a.fronts.of(key) {
			older := c.by.created < n.Created.Unix()
			switch c.kind() {
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

// setNode records what a Node holds; nil: it is gone.
func (a *arbiter) setNode(name string, now *NodeHolding) {
	touched, changed := a.others.setNode(name, now)
	if !changed {
		return
	}
	a.suspects[name] = struct{}{}
	if touched.all {
		a.reconsiderAll()
		return
	}
	for _, addr := range touched.addrs {
		a.reconsider(addr)
	}
	if len(touched.ranges) == 0 {
		return
	}
	for addr := range a.external {
		if slices.ContainsFunc(touched.ranges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			a.reconsider(addr)
		}
	}
}

// setHost records what this host has.
func (a *arbiter) setHost(h Host) {
	if a.others.setHost(h) {
		a.reconsiderAll()
	}
}

// setServiceRanges records the ranges of cluster IPs.
func (a *arbiter) setServiceRanges(ranges []netip.Prefix) {
	if !a.others.setServiceRanges(ranges) {
		return
	}
	a.reconsiderAll()
	for name := range a.others.nodes {
		a.suspects[name] = struct{}{}
	}
}

// setServers records the endpoints of the API server.
func (a *arbiter) setServers(endpoints []netip.AddrPort) {
	if a.others.setServers(endpoints) {
		a.reconsiderAll()
	}
}

// disbelieved says which addresses a Node reports that are others', "" for none.
func (a *arbiter) disbelieved(name string) string {
	n, ok := a.others.nodes[name]
	if !ok || name == a.others.node {
		return ""
	}
	var parts []string
	for _, addr := range n.Addresses {
		if of := a.holderOf(addr, name); of != "" {
			parts = append(parts, fmt.Sprintf("%s is %s", addr, of))
		}
	}
	if n.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("of %d addresses the first %d count", n.Dropped+len(n.Addresses), maxNodeAddresses))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("Node status.addresses: %s: want addresses that only this Node has", strings.Join(parts, "; "))
}

// holderOf is who holds an address that a Node reports; "": none whose right is better.
func (a *arbiter) holderOf(addr netip.Addr, node string) string {
	if first := a.cluster.first[addr]; first != nil {
		return "the cluster IP of Service " + first.by.name.String()
	}
	ranges := a.others.holders.ServiceRanges
	if i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }); i >= 0 {
		return fmt.Sprintf("in %s, the range of cluster IPs", ranges[i])
	}
	if !a.isLate(addr, node) {
		return ""
	}
	var has []*entry
	for key := range a.external[addr] {
		if e := a.winner(key); e != nil {
			has = append(has, e)
		}
	}
	if len(has) == 0 {
		return ""
	}
	return fmt.Sprintf("an address of Service %s, which had it before", slices.MinFunc(has, older).name)
}

// snapshot is what the decisions rest on, beside the Services.
func (a *arbiter) snapshot() Holders {
	out := a.others.holders
	out.Nodes = slices.Collect(maps.Values(a.others.nodes))
	for addr := range a.external {
		for _, node := range slices.Concat(a.others.nodesAt[addr], a.others.podNodes(addr)) {
			if a.isLate(addr, node) {
				out.Late = append(out.Late, NodeAddress{addr, node})
			}
		}
	}
	slices.SortFunc(out.Late, compareNodeAddress)
	out.Late = slices.Compact(out.Late)
	return out
}
