package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Tracker maintains the Table for a stream of events. After any events in any order, its Table equals that of Build for
// the remaining objects and Holders. The cost of an event depends only on its own Service and those that claim the same
// fronts. It is not safe for concurrent use.
type Tracker struct {
	node    NodeInfo
	entries map[ServiceName]*entry
	owner   map[types.NamespacedName]*entry // by slice
	dirty   map[*entry]struct{}
	arbiter *arbiter
	table   Table
}

// entry is everything that is known about one Service.
type entry struct {
	name     ServiceName
	object   *v1.Service                // nil: there are only slices for it
	slices   []*discovery.EndpointSlice // sorted by name
	created  int64                      // in seconds, as used for claims
	claims   []claim                    // as the arbiter knows them
	denied   map[FrontKey]Problem       // claims that other holders won
	problems []Problem                  // of the Service itself
}

// NewTracker returns a Tracker without Services. holders is what is known of other holders at start; the Tracker
// determines its Late Nodes.
func NewTracker(node NodeInfo, holders Holders) *Tracker {
	t := &Tracker{node: node, entries: map[ServiceName]*entry{}, owner: map[types.NamespacedName]*entry{}, dirty: map[*entry]struct{}{},
		arbiter: newArbiter(node.Name, holders), table: Table{ServiceRanges: sorted(holders.ServiceRanges, netip.Prefix.Compare)}}
	t.table.PodRanges = t.arbiter.others.ownPodRanges()
	return t
}

// SetNode sets this node's current state; a change affects every Service.
func (t *Tracker) SetNode(node NodeInfo) {
	if node == t.node {
		return
	}
	t.node = node
	for _, e := range t.entries {
		t.dirty[e] = struct{}{}
	}
}

// SetHost sets this host's current addresses.
func (t *Tracker) SetHost(h Host) { t.arbiter.setHost(h) }

// SetServiceRanges sets the ranges of cluster IPs; none: unknown.
func (t *Tracker) SetServiceRanges(ranges []netip.Prefix) {
	t.arbiter.setServiceRanges(ranges)
	t.table.ServiceRanges = sorted(ranges, netip.Prefix.Compare)
}

// SetNodeHolding sets what a Node, this or another, reports as its own; nil: it is gone. It affects Services at the
// addresses that changed.
func (t *Tracker) SetNodeHolding(name string, holding *NodeHolding) {
	t.arbiter.setNode(name, holding)
	if name != t.node.Name {
		return
	}
	t.table.PodRanges = t.arbiter.others.ownPodRanges()
}

// Holders returns the Table's input other than Services and slices: with it, Build computes the same Table.
func (t *Tracker) Holders() Holders { return t.arbiter.snapshot() }

// Disbelieved says which addresses that a Node reports belong to others; "": none.
func (t *Tracker) Disbelieved(node string) string { return t.arbiter.disbelieved(node) }

// Suspects returns the Nodes for which the result of Disbelieved may have changed since the last call, sorted.
func (t *Tracker) Suspects() []string {
	out := slices.Sorted(maps.Keys(t.arbiter.suspects))
	clear(t.arbiter.suspects)
	return out
}

// entry returns a Service's entry, and creates it if needed.
func (t *Tracker) entry(name ServiceName) *entry {
	e := t.entries[name]
	if e == nil {
		e = &entry{name: name}
		t.entries[name] = e
	}
	return e
}

// SetService sets a Service's current state. The Tracker keeps the object and does not modify it.
func (t *Tracker) SetService(s *v1.Service) {
	e := t.entry(ServiceName{Namespace: s.Namespace, Name: s.Name})
	if e.object == s {
		return
	}
	e.object = s
	t.dirty[e] = struct{}{}
}

// DeleteService removes a Service.
func (t *Tracker) DeleteService(name ServiceName) {
	if e := t.entries[name]; e != nil {
		e.object = nil
		t.dirty[e] = struct{}{}
	}
}

func compareSliceName(s *discovery.EndpointSlice, name string) int { return cmp.Compare(s.Name, name) }

// SetSlice sets an EndpointSlice's current state. If its label has changed, it belongs to another Service.
func (t *Tracker) SetSlice(slice *discovery.EndpointSlice) {
	key := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
	name, ok := sliceService(slice)
	if before := t.owner[key]; before != nil && (!ok || before.name != name) {
		t.DeleteSlice(key)
	}
	if !ok {
		return
	}
	e := t.entry(name)
	at, has := slices.BinarySearchFunc(e.slices, slice.Name, compareSliceName)
	switch {
	case !has:
		e.slices = slices.Insert(e.slices, at, slice)
	case e.slices[at] == slice:
		return
	default:
		e.slices[at] = slice
	}
	t.owner[key] = e
	t.dirty[e] = struct{}{}
}

// DeleteSlice removes an EndpointSlice.
func (t *Tracker) DeleteSlice(key types.NamespacedName) {
	e := t.owner[key]
	if e == nil {
		return
	}
	delete(t.owner, key)
	if at, has := slices.BinarySearchFunc(e.slices, key.Name, compareSliceName); has {
		e.slices = slices.Delete(e.slices, at, at+1)
	}
	t.dirty[e] = struct{}{}
}

// Service returns the Service as last seen; nil: none.
func (t *Tracker) Service(name ServiceName) *v1.Service {
	if e := t.entries[name]; e != nil {
		return e.object
	}
	return nil
}

// Table returns the Table as of the last Update. The Tracker owns it: Update changes it in place, but never the slices
// inside a Route.
func (t *Tracker) Table() *Table { return &t.table }

// Problems lists what is omitted of a Service and its slices, sorted.
func (t *Tracker) Problems(name ServiceName) []Problem {
	e := t.entries[name]
	if e == nil {
		return nil
	}
	if len(e.denied) == 0 {
		return e.problems
	}
	out := slices.AppendSeq(slices.Clone(e.problems), maps.Values(e.denied))
	sortProblems(out)
	return slices.Compact(out) // otherwise one per port of an address
}

// AllProblems lists what is omitted of all Services, sorted.
func (t *Tracker) AllProblems() (out []Problem) {
	for name := range t.entries {
		out = append(out, t.Problems(name)...)
	}
	sortProblems(out)
	return out
}

// spliceLimit is the number of changed Services from which rebuilding the whole Table is cheaper than changing it in
// place.
const spliceLimit = 32

// change is one Service's new part of the Table.
type change struct {
	by *entry
	built
}

// Update updates the Table. It returns the Services whose Routes or health check changed, sorted, and all that were
// checked.
func (t *Tracker) Update() (names, touched []ServiceName) {
	now := make([]change, 0, len(t.dirty))
	for e := range t.dirty {
		now = append(now, change{e, t.rebuild(e)})
	}
	t.arbiter.decide()
	for e := range t.arbiter.touched {
		if _, ok := t.dirty[e]; !ok {
			now = append(now, change{e, t.build(e)})
		}
	}
	t.arbiter.touched, t.dirty = emptied(t.arbiter.touched), emptied(t.dirty)
	t.arbiter.running = true
	touched = make([]ServiceName, 0, len(now))
	changed := now[:0]
	for _, u := range now {
		touched = append(touched, u.by.name)
		if len(u.by.denied) > 0 {
			denied := func(front FrontKey) bool { _, is := u.by.denied[front]; return is }
			u.routes = slices.DeleteFunc(u.routes, func(r Route) bool { return denied(r.Key()) })
			if slices.ContainsFunc(u.claims, func(c claim) bool { return c.health() && denied(c.front) }) {
				u.health = nil
			}
		}
		if !t.same(u) {
			changed = append(changed, u)
		}
	}
	slices.SortFunc(changed, func(a, b change) int { return compareService(a.by.name, b.by.name) })
	if len(changed) > spliceLimit {
		t.merge(changed)
	}
	names = make([]ServiceName, 0, len(changed))
	for _, u := range changed {
		names = append(names, u.by.name)
		if len(changed) <= spliceLimit {
			t.table.Set(u.by.name, u.routes, u.health)
		}
	}
	return names, touched
}

// build returns a Service's part of the Table, without other Services' claims.
func (t *Tracker) build(e *entry) built {
	if e.object == nil {
		return built{}
	}
	return buildService(e.object, e.slices, t.node)
}

// rebuild builds a Service and updates its claims in the arbiter if they changed.
func (t *Tracker) rebuild(e *entry) built {
	one := t.build(e)
	if e.name == apiServer {
		t.arbiter.setServers(endpointsOf(e.slices))
	}
	var created int64
	if e.object != nil {
		created = e.object.CreationTimestamp.Unix()
	}
	if e.created != created || !slices.EqualFunc(e.claims, one.claims, func(a, b claim) bool { return a.same(&b) }) {
		t.arbiter.withdraw(e)
		e.claims, e.created = one.claims, created
		t.arbiter.enter(e)
	}
	e.problems = one.problems
	if e.object == nil && len(e.slices) == 0 {
		delete(t.entries, e.name)
	}
	return one
}

// apiServer is the Service whose endpoints are the API servers.
var apiServer = ServiceName{Namespace: "default", Name: "kubernetes"}

// endpointsOf returns all endpoints of EndpointSlices, whatever their port names and conditions.
func endpointsOf(list []*discovery.EndpointSlice) (out []netip.AddrPort) {
	for _, slice := range list {
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				addr, ok := parseIP(text)
				for _, port := range slice.Ports {
					if n := ptr.Deref(port.Port, 0); ok && n > 0 && n <= 65535 {
						out = append(out, netip.AddrPortFrom(addr, uint16(n)))
					}
				}
			}
		}
	}
	return out
}

// same reports whether the Table already has a Service's new part.
func (t *Tracker) same(u change) bool {
	health, ok := t.table.HealthCheckOf(u.by.name)
	if ok != (u.health != nil) || ok && health != *u.health {
		return false
	}
	return routesEqual(t.table.Of(u.by.name), u.routes)
}

// merge builds the Table from the unchanged Services and the changed ones, which are sorted as the Table is.
func (t *Tracker) merge(changed []change) {
	before, total := t.table, len(t.table.Routes)
	for _, u := range changed {
		total += len(u.routes) - len(before.Of(u.by.name))
	}
	out := before
	out.Routes, out.HealthChecks = make([]Route, 0, total), nil
	routes, checks := 0, 0 // number of processed items of the previous Table
	for _, u := range changed {
		from, to := before.span(u.by.name)
		out.Routes = append(append(out.Routes, before.Routes[routes:from]...), u.routes...)
		routes = to
		at, has := before.healthIndex(u.by.name)
		out.HealthChecks = append(out.HealthChecks, before.HealthChecks[checks:at]...)
		if checks = at; has {
			checks++
		}
		if u.health != nil {
			out.HealthChecks = append(out.HealthChecks, *u.health)
		}
	}
	out.Routes = append(out.Routes, before.Routes[routes:]...)
	out.HealthChecks = append(out.HealthChecks, before.HealthChecks[checks:]...)
	t.table = out
}
