package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// claim is a Service's claim to a front, with the field that makes it.
type claim struct {
	front FrontKey
	by    *entry
	index int32 // index in the list of that field; healthCheck: spec.healthCheckNodePort
	rank  uint8 // index of its kind in ranked
}

// healthCheck is the index of claims to a health check node port. They are claims to a node port in both families, on
// all addresses, because the proxy listens there itself.
const healthCheck = -1

// ranked lists the kinds by their right to a front. Controllers write load balancers' addresses; anyone who may create
// Services can write external IPs.
var ranked = [...]Kind{ClusterIP, LoadBalancer, ExternalIP, NodePort}

func rankOf(kind Kind) uint8 { return uint8(slices.Index(ranked[:], kind)) }

func (c *claim) kind() Kind { return ranked[c.rank] }

func (c *claim) external() bool { return c.kind() == ExternalIP || c.kind() == LoadBalancer }

func (c *claim) health() bool { return c.index == healthCheck }

// same reports whether two claims of one Service are equal.
func (c *claim) same(o *claim) bool {
	return c.front == o.front && c.index == o.index && c.rank == o.rank
}

// field names the field that makes the claim.
func (c *claim) field() string {
	if c.health() {
		return "Service spec.healthCheckNodePort"
	}
	switch c.kind() {
	case ClusterIP:
		return fmt.Sprintf("Service spec.clusterIPs[%d]", c.index)
	case ExternalIP:
		return fmt.Sprintf("Service spec.externalIPs[%d]", c.index)
	case LoadBalancer:
		return fmt.Sprintf("Service status.loadBalancer.ingress[%d].ip", c.index)
	}
	return fmt.Sprintf("Service spec.ports[%d].nodePort", c.index)
}

// older orders Services by age. Among claims of one kind, the older Service has the better right.
func older(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.created, b.created), compareService(a.name, b.name))
}

func byRight(a, b *claim) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), older(a.by, b.by))
}

// arbiter decides which Service gets which front. Claims are indexed by front and by address, so that the cost depends
// on the size of the change: a front is decided again only when its claims or the other holders of its address change.
type arbiter struct {
	others   others
	fronts   index[FrontKey]
	cluster  index[netip.Addr]                    // claims of cluster IPs, one per Service
	external map[netip.Addr]map[FrontKey]struct{} // claimed fronts outside the cluster's own ranges
	ports    map[FrontKey]struct{}                // claimed node ports
	first    map[netip.Addr][]string              // Nodes that had an address before the first Service claimed it
	late     map[NodeAddress]bool                 // replaces first if set (fixLate); nil: not set
	running  bool                                 // all objects that existed at start were seen
	dirty    map[FrontKey]struct{}                // fronts to decide
	claimed  map[netip.Addr]bool                  // addresses that may have gained their first claim or lost their last; the value says whether they had one
	touched  map[*entry]struct{}                  // entries whose outcome changed
	suspects map[string]struct{}                  // Nodes for whose addresses the decision may have changed
}

func newArbiter(node string, holders Holders) *arbiter {
	a := &arbiter{others: newOthers(node, holders), fronts: newIndex[FrontKey](), cluster: newIndex[netip.Addr](),
		external: map[netip.Addr]map[FrontKey]struct{}{}, ports: map[FrontKey]struct{}{}, first: map[netip.Addr][]string{}, dirty: map[FrontKey]struct{}{},
		claimed: map[netip.Addr]bool{}, touched: map[*entry]struct{}{}, suspects: map[string]struct{}{}}
	for i := range holders.Nodes {
		a.setNode(holders.Nodes[i].Name, &holders.Nodes[i])
	}
	return a
}

// enter adds the claims of an entry.
func (a *arbiter) enter(e *entry) {
	for i := range e.claims {
		c := &e.claims[i]
		c.by = e
		a.fronts.add(c.front, c)
		a.moved(c, true)
	}
}

// withdraw removes the claims of an entry.
func (a *arbiter) withdraw(e *entry) {
	for i := range e.claims {
		c := &e.claims[i]
		a.fronts.remove(c.front, e)
		a.moved(c, false)
	}
	e.claims, e.denied = nil, nil
}

// moved updates the indexes after a claim was added or removed, and marks what to decide again.
func (a *arbiter) moved(c *claim, came bool) {
	a.dirty[c.front] = struct{}{}
	addr := c.front.addr
	switch c.kind() {
	case ClusterIP:
		switch {
		case came && a.cluster.has(addr, c.by): // already claimed for another port
			return
		case came:
			a.cluster.add(addr, c)
		case !a.cluster.remove(addr, c.by): // already removed for another port
			return
		}
		a.reconsider(addr)
	case NodePort:
		if a.ports[c.front] = struct{}{}; a.fronts.first[c.front] == nil {
			delete(a.ports, c.front)
		}
		for own := range a.others.own {
			key := FrontKey{own, c.front.port, c.front.protocol}
			if _, ok := a.external[own][key]; ok && own.Is4() == addr.Is4() {
				a.dirty[key] = struct{}{}
			}
		}
	default:
		a.indexExternal(addr, c.front)
	}
}

// indexExternal updates the claims at an external address.
func (a *arbiter) indexExternal(addr netip.Addr, front FrontKey) {
	if _, ok := a.claimed[addr]; !ok {
		a.claimed[addr] = len(a.external[addr]) > 0
	}
	for c := range a.fronts.of(front) {
		if c.external() {
			if a.external[addr] == nil {
				a.external[addr] = map[FrontKey]struct{}{}
			}
			a.external[addr][front] = struct{}{}
			return
		}
	}
	if delete(a.external[addr], front); len(a.external[addr]) == 0 {
		delete(a.external, addr)
	}
}

// reconsider marks an address after one of its holders was added or removed.
func (a *arbiter) reconsider(addr netip.Addr) {
	for key := range a.external[addr] {
		a.dirty[key] = struct{}{}
	}
	a.suspect(addr)
}

func (a *arbiter) suspect(addr netip.Addr) {
	for _, node := range a.others.nodesAt[addr] {
		a.suspects[node] = struct{}{}
	}
}

// reconsiderAll marks all external addresses and node ports. It is for rare changes that may affect any of them.
func (a *arbiter) reconsiderAll() {
	maps.Copy(a.dirty, a.ports)
	for addr := range a.external {
		a.reconsider(addr)
	}
}

// decide decides all marked fronts. No decision depends on another, so their order does not matter.
func (a *arbiter) decide() {
	a.decideFirst()
	for key := range a.dirty {
		var winner *claim
		for c := range a.fronts.of(key) {
			p, denied := a.refuse(c)
			if !denied && winner != nil {
				p, denied = lost(c, winner), true
			}
			if !denied {
				winner = c
			}
			a.note(c.by, key, p, denied)
		}
		a.suspect(key.addr)
	}
	a.dirty = emptied(a.dirty)
}

// emptied returns m without entries, and a new map if m was large, to free its memory.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 1000 {
		return map[K]V{}
	}
	clear(m)
	return m
}

// note records a decision.
func (a *arbiter) note(e *entry, key FrontKey, p Problem, denied bool) {
	was, is := e.denied[key]
	if is == denied && was == p {
		return
	}
	a.touched[e] = struct{}{}
	switch {
	case !denied:
		delete(e.denied, key)
	case e.denied == nil:
		e.denied = map[FrontKey]Problem{key: p}
	default:
		e.denied[key] = p
	}
}

// winner returns the Service that got a front; nil: none.
func (a *arbiter) winner(key FrontKey) *entry {
	for c := range a.fronts.of(key) {
		if _, denied := c.by.denied[key]; !denied {
			return c.by
		}
	}
	return nil
}

// lost returns the Problem of a claim that loses to another Service's claim.
func lost(c, winner *claim) Problem {
	why := "which is older"
	if c.rank != winner.rank {
		why = "which takes precedence: cluster IPs come before load balancers' addresses, and those before external IPs"
	}
	what := "address or port"
	if c.kind() == NodePort {
		what = "node port"
	}
	return Problem{c.by.name, c.field(), fmt.Sprintf("%s is %s of Service %s, %s: want another %s", c.front, winner.what(), winner.by.name, why, what), Refused}
}

// what names what the Service has that won.
func (c *claim) what() string {
	if c.health() {
		return "the health check node port"
	}
	return words[c.kind()]
}

var words = map[Kind]string{ClusterIP: "the cluster IP", LoadBalancer: "a load balancer's address", ExternalIP: "an external IP", NodePort: "the node port"}

// refuse reports whether a holder other than a Service has the front of a claim. docs/reference/service-api.md has the
// table.
func (a *arbiter) refuse(c *claim) (Problem, bool) {
	var reason Reason
	var text string
	switch {
	case c.external():
		reason, text = a.refusal(c)
	case c.kind() == NodePort:
		if of := a.others.reserved(c.front); of != "" {
			reason, text = Refused, fmt.Sprintf("%s port %d is reserved on this node for %s: want another port", c.front.Protocol(), c.front.port, of)
		}
	}
	if reason == "" {
		return Problem{}, false
	}
	return Problem{c.by.name, c.field(), text, reason}, true
}

func (a *arbiter) refusal(c *claim) (Reason, string) {
	addr, o := c.front.addr, &a.others
	holds := func(p netip.Prefix) bool { return p.Contains(addr) }
	if first := a.cluster.first[addr]; first != nil {
		return Refused, fmt.Sprintf("%s is the cluster IP of Service %s: want an address outside of the cluster's ranges", addr, first.by.name)
	}
	if i := slices.IndexFunc(o.holders.ServiceRanges, holds); i >= 0 {
		return Refused, fmt.Sprintf("%s is in %s, the range of cluster IPs: want an address outside of the cluster's ranges", addr, o.holders.ServiceRanges[i])
	}
	if ranges := o.nodes[o.node].PodRanges; slices.ContainsFunc(ranges, holds) {
		return Refused, fmt.Sprintf("%s is in the pod range of Node %s: want an address outside of the cluster's ranges", addr, o.node)
	}
	if o.own[addr] {
		return a.refusalHere(c)
	}
	for _, node := range o.nodesAt[addr] {
		if !a.isLate(addr, node) {
			return Elsewhere, fmt.Sprintf("%s is an address of Node %s, which serves it itself", addr, node)
		}
	}
	if i := slices.IndexFunc(o.holders.PodRanges, holds); i >= 0 {
		return Refused, fmt.Sprintf("%s is in %s, the range of pods: want an address outside of the cluster's ranges", addr, o.holders.PodRanges[i])
	}
	if slices.ContainsFunc(o.servers, func(s netip.AddrPort) bool { return s.Addr() == addr }) {
		return Refused, fmt.Sprintf("%s is an address of the API server: want another address", addr)
	}
	if slices.Contains(o.holders.Host.NextHops, addr) {
		return Refused, fmt.Sprintf("%s is a next hop of this node's routes, which this node could then no longer reach: want another address", addr)
	}
	if node := a.podsOf(addr, c.kind()); node != "" {
		return Refused, fmt.Sprintf("%s is in the pod range of Node %s: want an address outside of the cluster's ranges", addr, node)
	}
	return "", ""
}

// refusalHere is refusal for an address of this host, where only ports in use are refused.
func (a *arbiter) refusalHere(c *claim) (Reason, string) {
	addr, port := c.front.addr, c.front.port
	if of := a.others.reserved(c.front); of != "" {
		return Refused, fmt.Sprintf("%s is an address of this node, and port %d is reserved there for %s: want another port", addr, port, of)
	}
	limit := a.others.holders.NodePortAddresses
	limited := len(limit) > 0 && !slices.ContainsFunc(limit, func(p netip.Prefix) bool { return p.Contains(addr) })
	all := netip.IPv6Unspecified()
	if addr.Is4() {
		all = netip.IPv4Unspecified()
	}
	for o := range a.fronts.of(FrontKey{all, port, c.front.protocol}) {
		switch {
		case limited && !o.health():
		case o.by == c.by && !o.health():
			return Elsewhere, fmt.Sprintf("%s is an address of this node, where node port %d of the same Service serves it", addr, port)
		default:
			return Refused, fmt.Sprintf("%s is an address of this node, and %s port %d is %s of Service %s: want another port", addr, c.front.Protocol(), port, o.what(), o.by.name)
		}
	}
	return "", ""
}

// podsOf returns another Node whose pods have an address; "": none. With --cluster-cidr, refusal has already checked
// all addresses of pods. Without it, a Node's range counts unless it is very wide, or a load balancer had the address
// before.
func (a *arbiter) podsOf(addr netip.Addr, kind Kind) string {
	if len(a.others.holders.PodRanges) > 0 {
		return ""
	}
	for _, node := range a.others.podNodes(addr) {
		if kind == ExternalIP || !a.isLate(addr, node) {
			return node
		}
	}
	return ""
}
