package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// entry is what one Service asks for, and what of it was decided.
type entry struct {
	name     ServiceName
	created  int64 // in seconds
	asks     []ask
	denied   map[FrontKey]Problem
	problems []Problem // of the Service by itself
}

// claimant is an entry at one of its fronts.
type claimant struct {
	by *entry
	at int32 // in by.asks
}

func (c claimant) ask() *ask { return &c.by.asks[c.at] }

// claims decide which Service has which front. They are indexed by front and by address, so that a change costs what it touches: a front is decided
// again when its claimants change, or what somebody else has at its address.
type claims struct {
	node     string
	holders  Holders // without Nodes and Late
	fronts   map[FrontKey][]claimant
	cluster  map[netip.Addr][]*entry              // those with this cluster IP
	external map[netip.Addr]map[FrontKey]struct{} // fronts outside of the cluster's own ranges
	own      map[netip.Addr]bool                  // addresses of this host
	servers  []netip.AddrPort                     // all API servers
	nodes    map[string]NodeClaim                 // this one too
	claimed  map[netip.Addr][]string              // by which other Nodes
	ranges   map[netip.Prefix][]string            // of which other Nodes' pods
	lengths  map[int]int                          // how many ranges have so many bits; IPv6: negative
	first    map[netip.Addr][]string              // Nodes that claimed an address before the first Service asked for it
	late     map[LateClaim]bool                   // what first says, where it was given; nil: it was not
	running  bool                                 // the objects that existed at start have been seen
	dirty    map[FrontKey]struct{}                // to decide
	asked    map[netip.Addr]bool                  // addresses that may have got their first ask, or lost the last: whether they had one
	touched  map[ServiceName]struct{}             // with another outcome
	suspects map[string]struct{}                  // Nodes of which something else may be believed now
}

func newClaims(node string, holders Holders) *claims {
	c := &claims{node: node, holders: holders, fronts: map[FrontKey][]claimant{}, cluster: map[netip.Addr][]*entry{},
		external: map[netip.Addr]map[FrontKey]struct{}{}, nodes: map[string]NodeClaim{}, claimed: map[netip.Addr][]string{}, ranges: map[netip.Prefix][]string{},
		lengths: map[int]int{}, first: map[netip.Addr][]string{}, dirty: map[FrontKey]struct{}{}, asked: map[netip.Addr]bool{},
		touched: map[ServiceName]struct{}{}, suspects: map[string]struct{}{}}
	c.holders.Nodes, c.holders.Late = nil, nil
	c.servers = holders.APIServers
	c.findOwn()
	for _, n := range holders.Nodes {
		c.setNode(n.Name, &n)
	}
	return c
}

// olderEntry orders Services by their right among those that ask for the same: who came first.
func olderEntry(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.created, b.created), compareService(a.name, b.name))
}

func byRight(a, b claimant) int {
	return cmp.Or(cmp.Compare(a.ask().rank, b.ask().rank), olderEntry(a.by, b.by))
}

// enter adds what an entry asks for.
func (c *claims) enter(e *entry) {
	for i := range e.asks {
		a, one := &e.asks[i], claimant{e, int32(i)}
		list := c.fronts[a.front]
		at, _ := slices.BinarySearchFunc(list, one, byRight)
		c.fronts[a.front] = slices.Insert(list, at, one)
		c.moved(e, a, true)
	}
}

// withdraw takes back what an entry asked for.
func (c *claims) withdraw(e *entry) {
	for i := range e.asks {
		a := &e.asks[i]
		list := slices.DeleteFunc(c.fronts[a.front], func(o claimant) bool { return o.by == e })
		if c.fronts[a.front] = list; len(list) == 0 {
			delete(c.fronts, a.front)
		}
		c.moved(e, a, false)
	}
	e.asks, e.denied = nil, nil
}

// moved keeps the indexes after an ask has come or gone, and notes what is to be decided again.
func (c *claims) moved(e *entry, a *ask, came bool) {
	c.dirty[a.front] = struct{}{}
	addr := a.front.addr
	switch a.kind() {
	case ClusterIP:
		list := c.cluster[addr]
		at, is := slices.BinarySearchFunc(list, e, olderEntry)
		switch {
		case is == came: // of another port
			return
		case came:
			c.cluster[addr] = slices.Insert(list, at, e)
		case len(list) > 1:
			c.cluster[addr] = slices.Delete(list, at, at+1)
		default:
			delete(c.cluster, addr)
		}
		c.reconsider(addr)
	case NodePort:
		for own := range c.own {
			key := FrontKey{own, a.front.port, a.front.protocol}
			if _, ok := c.external[own][key]; ok && own.Is4() == addr.Is4() {
				c.dirty[key] = struct{}{}
			}
		}
	default:
		c.index(addr, a.front)
	}
}

// index keeps what is asked for at an external address.
func (c *claims) index(addr netip.Addr, front FrontKey) {
	if _, ok := c.asked[addr]; !ok {
		c.asked[addr] = len(c.external[addr]) > 0
	}
	if slices.ContainsFunc(c.fronts[front], func(o claimant) bool { return o.ask().external() }) {
		if c.external[addr] == nil {
			c.external[addr] = map[FrontKey]struct{}{}
		}
		c.external[addr][front] = struct{}{}
		return
	}
	if delete(c.external[addr], front); len(c.external[addr]) == 0 {
		delete(c.external, addr)
	}
}

// reconsider notes that somebody else has come to an address, or gone.
func (c *claims) reconsider(addr netip.Addr) {
	for key := range c.external[addr] {
		c.dirty[key] = struct{}{}
	}
	c.suspect(addr)
}

func (c *claims) suspect(addr netip.Addr) {
	for _, node := range c.claimed[addr] {
		c.suspects[node] = struct{}{}
	}
}

// reconsiderAll is for what seldom changes and may be about every external address.
func (c *claims) reconsiderAll() {
	for addr := range c.external {
		c.reconsider(addr)
	}
}

// settle decides what has changed. What it decides of one front depends on no other decision, so the order does not matter.
func (c *claims) settle() {
	c.settleFirst()
	for key := range c.dirty {
		var holder *claimant
		list := c.fronts[key]
		for i := range list {
			p, denied := c.refuse(key, list[i])
			if !denied && holder != nil {
				p, denied = held(list[i], *holder), true
			}
			if !denied {
				holder = &list[i]
			}
			c.note(list[i].by, key, p, denied)
		}
		c.suspect(key.addr)
	}
	c.dirty = emptied(c.dirty)
}

// emptied is m without its entries, and without the memory of many.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 1000 {
		return map[K]V{}
	}
	clear(m)
	return m
}

// note takes a decision.
func (c *claims) note(e *entry, key FrontKey, p Problem, denied bool) {
	was, is := e.denied[key]
	if is == denied && was == p {
		return
	}
	c.touched[e.name] = struct{}{}
	switch {
	case !denied:
		delete(e.denied, key)
	case e.denied == nil:
		e.denied = map[FrontKey]Problem{key: p}
	default:
		e.denied[key] = p
	}
}

// holder is who has a front after all.
func (c *claims) holder(key FrontKey) *entry {
	for _, one := range c.fronts[key] {
		if _, denied := one.by.denied[key]; !denied {
			return one.by
		}
	}
	return nil
}

// held is the Problem of who comes second.
func held(loser, holder claimant) Problem {
	a, h := loser.ask(), holder.ask()
	why := "which is older"
	if a.rank != h.rank {
		why = "whose right is better: cluster IPs come before load balancers' addresses, and those before external IPs"
	}
	what := "address or port"
	if a.kind() == NodePort {
		what = "node port"
	}
	return Problem{loser.by.name, a.field(), fmt.Sprintf("%s is %s of Service %s, %s: want another %s", a.front, words[h.kind()], holder.by.name, why, what), Refused}
}

var words = map[Kind]string{ClusterIP: "the cluster IP", LoadBalancer: "a load balancer's address", ExternalIP: "an external IP", NodePort: "the node port"}

// refuse says whether somebody other than the Services at this front has it. docs/reference/service-api.md has the table.
func (c *claims) refuse(key FrontKey, one claimant) (Problem, bool) {
	a := one.ask()
	if !a.external() {
		return Problem{}, false
	}
	reason, text := c.refusal(key, one.by, a)
	if reason == "" {
		return Problem{}, false
	}
	return Problem{one.by.name, a.field(), text, reason}, true
}

func (c *claims) refusal(key FrontKey, e *entry, a *ask) (Reason, string) {
	addr, port := key.addr, key.port
	holds := func(p netip.Prefix) bool { return p.Contains(addr) }
	if list := c.cluster[addr]; len(list) > 0 {
		return Refused, fmt.Sprintf("%s is the cluster IP of Service %s: want an address outside of the cluster's ranges", addr, list[0].name)
	}
	if i := slices.IndexFunc(c.holders.ServiceRanges, holds); i >= 0 {
		return Refused, fmt.Sprintf("%s is in %s, the range of cluster IPs: want an address outside of the cluster's ranges", addr, c.holders.ServiceRanges[i])
	}
	if ranges := c.nodes[c.node].PodRanges; slices.ContainsFunc(ranges, holds) {
		return Refused, fmt.Sprintf("%s is in the pod range of Node %s: want an address outside of the cluster's ranges", addr, c.node)
	}
	if c.own[addr] {
		return c.refusalHere(key, e, port)
	}
	for _, node := range c.claimed[addr] {
		if !c.isLate(addr, node) {
			return Elsewhere, fmt.Sprintf("%s is an address of Node %s, which serves it itself", addr, node)
		}
	}
	if i := slices.IndexFunc(c.holders.PodRanges, holds); i >= 0 {
		return Refused, fmt.Sprintf("%s is in %s, the range of pods: want an address outside of the cluster's ranges", addr, c.holders.PodRanges[i])
	}
	if slices.ContainsFunc(c.servers, func(s netip.AddrPort) bool { return s.Addr() == addr }) {
		return Refused, fmt.Sprintf("%s is an address of the API server: want another address", addr)
	}
	if slices.Contains(c.holders.Host.NextHops, addr) {
		return Refused, fmt.Sprintf("%s is a next hop of this node's routes, which it would be cut off from: want another address", addr)
	}
	if node := c.podsOf(addr, a.kind()); node != "" {
		return Refused, fmt.Sprintf("%s is in the pod range of Node %s: want an address outside of the cluster's ranges", addr, node)
	}
	return "", ""
}

// refusalHere is refusal for an address of this host: only ports that are taken are refused.
func (c *claims) refusalHere(key FrontKey, e *entry, port uint16) (Reason, string) {
	addr := key.addr
	if of := c.holders.reserved(key.Protocol(), port, c.own, c.servers); of != "" {
		return Refused, fmt.Sprintf("%s is an address of this node, and port %d is reserved there for %s: want another port", addr, port, of)
	}
	limit := c.holders.NodePortAddresses
	if len(limit) > 0 && !slices.ContainsFunc(limit, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return "", ""
	}
	all := netip.IPv6Unspecified()
	if addr.Is4() {
		all = netip.IPv4Unspecified()
	}
	if list := c.fronts[FrontKey{all, port, key.protocol}]; len(list) > 0 {
		if list[0].by == e {
			return Elsewhere, fmt.Sprintf("%s is an address of this node, where node port %d of the same Service serves it", addr, port)
		}
		return Refused, fmt.Sprintf("%s is an address of this node, and %s port %d is the node port of Service %s: want another port", addr, key.Protocol(), port, list[0].by.name)
	}
	return "", ""
}

// podsOf is another Node whose pods have an address, "" for none. A range of a Node is believed within --cluster-cidr, which refusal has asked
// already; where that is not known, it is believed unless it is very wide, or a load balancer had the address before.
func (c *claims) podsOf(addr netip.Addr, kind Kind) string {
	if len(c.holders.PodRanges) > 0 {
		return ""
	}
	for _, node := range c.podNodes(addr) {
		if kind == ExternalIP || !c.isLate(addr, node) {
			return node
		}
	}
	return ""
}

// podNodes are other Nodes in whose range for pods an address is, sorted.
func (c *claims) podNodes(addr netip.Addr) (out []string) {
	for length := range c.lengths {
		if addr.Is4() != (length >= 0) {
			continue
		}
		if p, err := addr.Prefix(max(length, -length)); err == nil {
			out = append(out, c.ranges[p]...)
		}
	}
	slices.Sort(out)
	return out
}
