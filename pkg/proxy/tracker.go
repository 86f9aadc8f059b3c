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

// Tracker keeps the Table of a stream of events. After any events in any order its Table is what Build makes of the objects that are
// left, and of Holders; an event costs what its own Service costs, and those that claim the same fronts. It is not safe for concurrent use.
type Tracker struct {
	node    NodeInfo
	entries map[ServiceName]*entry
	owner   map[types.NamespacedName]*entry // of each slice
	dirty   map[*entry]struct{}
	arbiter *arbiter
	table   Table
}

// entry is everything that is known of one Service.
type entry struct {
	name     ServiceName
	object   *v1.Service                // nil: there is none, but slices for one
	slices   []*discovery.EndpointSlice // by name
	created  int64                      // in seconds, as of the claims
	claims   []claim                    // as the arbiter has them
	denied   map[FrontKey]Problem       // claims that others won
	problems []Problem                  // of the Service by itself
}

// NewTracker returns a Tracker without Services. holders is what is known so far of others; its Late Nodes are found out.
func NewTracker(node NodeInfo, holders Holders) *Tracker {
	return &Tracker{node: node, entries: map[ServiceName]*entry{}, owner: map[types.NamespacedName]*entry{}, dirty: map[*entry]struct{}{},
		arbiter: newArbiter(node.Name, holders), table: Table{ServiceRanges: sorted(holders.ServiceRanges, netip.Prefix.Compare)}}
}

// SetNode says what this node is now; a difference touches every Service.
func (t *Tracker) SetNode(node NodeInfo) {
	if node == t.node {
		return
	}
	t.node = node
	for _, e := range t.entries {
		t.dirty[e] = struct{}{}
	}
}

// SetHost says what addresses this host has now.
func (t *Tracker) SetHost(h Host) { t.arbiter.setHost(h) }

// SetServiceRanges says where cluster IPs are taken from now; none: it is not known.
func (t *Tracker) SetServiceRanges(ranges []netip.Prefix) {
	t.arbiter.setServiceRanges(ranges)
	t.table.ServiceRanges = sorted(ranges, netip.Prefix.Compare)
}

// SetNodeHolding says what a Node, this or another, reports as its own now; nil: it is gone. It touches Services at the addresses that differ.
func (t *Tracker) SetNodeHolding(name string, holding *NodeHolding) { t.arbiter.setNode(name, holding) }

// Holders is what the Table rests on beside Services and slices: Build makes the same of it.
func (t *Tracker) Holders() Holders { return t.arbiter.snapshot() }

// Disbelieved says which addresses a Node reports that others have, "" for none.
func (t *Tracker) Disbelieved(node string) string { return t.arbiter.disbelieved(node) }

// Suspects are the Nodes for which Disbelieved may return something else since the last call, sorted.
func (t *Tracker) Suspects() []string {
	out := slices.Sorted(maps.Keys(t.arbiter.suspects))
	clear(t.arbiter.suspects)
	return out
}

// entry is that of a Service, made where there is none.
func (t *Tracker) entry(name ServiceName) *entry {
	e := t.entries[name]
	if e == nil {
		e = &entry{name: name}
		t.entries[name] = e
	}
	return e
}

// SetService records a Service as it is now. The Tracker keeps the object and does not write to it.
func (t *Tracker) SetService(s *v1.Service) {
	e := t.entry(ServiceName{Namespace: s.Namespace, Name: s.Name})
	if e.object == s {
		return
	}
	e.object = s
	t.dirty[e] = struct{}{}
}

// DeleteService forgets a Service.
func (t *Tracker) DeleteService(name ServiceName) {
	if e := t.entries[name]; e != nil {
		e.object = nil
		t.dirty[e] = struct{}{}
	}
}

func compareSliceName(s *discovery.EndpointSlice, name string) int { return cmp.Compare(s.Name, name) }

// SetSlice records an EndpointSlice as it is now. Its label may have changed: then it belongs to another Service.
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

// DeleteSlice forgets an EndpointSlice.
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

// Service returns the Service as last seen, nil when there is none.
func (t *Tracker) Service(name ServiceName) *v1.Service {
	if e := t.entries[name]; e != nil {
		return e.object
	}
	return nil
}

// Table returns the Table as of the last Update. It is the Tracker's: Update changes it in place, but never the slices inside a Route.
func (t *Tracker) Table() *Table { return &t.table }

// Problems lists what of a Service and its slices is left out, sorted.
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
	return slices.Compact(out) // one for each port of an address otherwise
}

// AllProblems lists what is left out of all Services, sorted.
func (t *Tracker) AllProblems() (out []Problem) {
	for name := range t.entries {
		out = append(out, t.Problems(name)...)
	}
	sortProblems(out)
	return out
}

// spliceLimit is the number of Services from which on making the whole Table again is cheaper than changing it in place.
const spliceLimit = 32

// change is what one Service gives to the Table now.
type change struct {
	by *entry
	built
}

// Update brings the Table up to date. It returns the Services whose Routes or health check changed, sorted, and all that were looked at.
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
			u.routes = slices.DeleteFunc(u.routes, func(r Route) bool { _, denied := u.by.denied[r.Key()]; return denied })
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

// build is what a Service gives to the Table by itself.
func (t *Tracker) build(e *entry) built {
	if e.object == nil {
		return built{}
	}
	return buildService(e.object, e.slices, t.node)
}

// rebuild builds a Service and tells the arbiter its claims where they differ.
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

// endpointsOf are all endpoints of EndpointSlices, whatever their port's name and condition.
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

// same says whether the Table has a Service as it is now.
func (t *Tracker) same(u change) bool {
	health, ok := t.table.HealthCheckOf(u.by.name)
	if ok != (u.health != nil) || ok && health != *u.health {
		return false
	}
	return routesEqual(t.table.Of(u.by.name), u.routes)
}

// merge makes the Table of the Services that stay and the changed ones, which are sorted as the Table is.
func (t *Tracker) merge(changed []change) {
	before, total := t.table, len(t.table.Routes)
	for _, u := range changed {
		total += len(u.routes) - len(before.Of(u.by.name))
	}
	out := before
	out.Routes, out.HealthChecks = make([]Route, 0, total), nil
	routes, checks := 0, 0 // so many of the former Table are done
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
