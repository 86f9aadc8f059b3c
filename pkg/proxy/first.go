package proxy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// This file decides between Services and Nodes that claim one address: the first one gets it.

// fixLate sets which Nodes came late to which addresses, instead of determining it.
func (a *arbiter) fixLate(list []NodeAddress) {
	a.late = map[NodeAddress]bool{}
	for _, l := range list {
		a.late[l] = true
	}
}

// isLate reports whether a Node got an address after a Service had claimed it.
func (a *arbiter) isLate(addr netip.Addr, node string) bool {
	if a.late != nil {
		return a.late[NodeAddress{addr, node}]
	}
	return !slices.Contains(a.first[addr], node)
}

// decideFirst determines who was first at addresses that Services have started to claim. Nodes that have such an
// address at that time keep it while Services claim it, even if they lose it temporarily. Nodes that get it later are
// late.
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

// nodeFirst decides at start, when only the ages of a Node and of the Services that claim its address are known: the
// older wins. An address that a controller wrote into a Service's status belongs to the Service, unless it is the
// Node's primary address: then the nodes are the load balancer, as with klipper.
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

// setNode records the addresses of a Node; nil: it is gone.
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

// setHost records the addresses of this host.
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

// disbelieved says which addresses that a Node reports belong to others; "": none.
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

// holderOf returns the holder of an address that a Node reports, if its right is better; "": none.
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

// snapshot returns the input of the decisions other than Services.
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
