package proxy

import (
	"maps"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Tracker keeps the Table of a stream of events. After any events in any order its Table is what Build makes of the objects that are
// left, and of Holders; an event costs what its own Service costs, and those that ask for the same fronts. It is not safe for concurrent use.
type Tracker struct {
	node     NodeInfo
	services map[ServiceName]*v1.Service
	slices   map[ServiceName]map[string]*discovery.EndpointSlice // by the slice's name
	owner    map[types.NamespacedName]ServiceName                // of each slice
	dirty    map[ServiceName]struct{}
	entries  map[ServiceName]*entry
	claims   *claims
	table    Table
}

// NewTracker returns a Tracker without Services. holders is what is known so far of others; its Late claims are found out.
func NewTracker(node NodeInfo, holders Holders) *Tracker {
	return &Tracker{node: node, services: map[ServiceName]*v1.Service{}, slices: map[ServiceName]map[string]*discovery.EndpointSlice{},
		owner: map[types.NamespacedName]ServiceName{}, dirty: map[ServiceName]struct{}{}, entries: map[ServiceName]*entry{}, claims: newClaims(node.Name, holders),
		table: Table{ServiceRanges: sorted(holders.ServiceRanges, netip.Prefix.Compare)}}
}

// SetNode says what this node is now; a difference touches every Service.
func (t *Tracker) SetNode(node NodeInfo) {
	if node == t.node {
		return
	}
	t.node = node
	for name := range t.services {
		t.dirty[name] = struct{}{}
	}
}

// SetHost says what addresses this host has now.
func (t *Tracker) SetHost(h Host) { t.claims.setHost(h) }

// SetServiceRanges says where cluster IPs are taken from now; none: it is not known.
func (t *Tracker) SetServiceRanges(ranges []netip.Prefix) {
	t.claims.setServiceRanges(ranges)
	t.table.ServiceRanges = sorted(ranges, netip.Prefix.Compare)
}

// SetNodeClaim takes what a Node, this or another, says of itself now; nil: it is gone. It touches Services at the addresses that differ.
func (t *Tracker) SetNodeClaim(name string, claim *NodeClaim) { t.claims.setNode(name, claim) }

// Holders is what the Table rests on beside Services and slices: Build makes the same of it.
func (t *Tracker) Holders() Holders { return t.claims.snapshot() }

// Disbelieved says which addresses a Node claims that others have, "" for none.
func (t *Tracker) Disbelieved(node string) string { return t.claims.disbelieved(node) }

// Suspects are the Nodes of which Disbelieved may say something else since the last call, sorted.
func (t *Tracker) Suspects() []string {
	out := slices.Sorted(maps.Keys(t.claims.suspects))
	clear(t.claims.suspects)
	return out
}

// SetService takes a Service as it is now. The Tracker keeps the object and does not write to it.
func (t *Tracker) SetService(s *v1.Service) {
	name := ServiceName{Namespace: s.Namespace, Name: s.Name}
	if t.services[name] == s {
		return
	}
	t.services[name] = s
	t.dirty[name] = struct{}{}
}

// DeleteService forgets a Service.
func (t *Tracker) DeleteService(name ServiceName) {
	delete(t.services, name)
	t.dirty[name] = struct{}{}
}

// SetSlice takes an EndpointSlice as it is now. Its label may have changed: then it belongs to another Service.
func (t *Tracker) SetSlice(slice *discovery.EndpointSlice) {
	key := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
	name, ok := sliceService(slice)
	if before, known := t.owner[key]; known && (!ok || before != name) {
		t.DeleteSlice(key)
	}
	if !ok || t.slices[name][slice.Name] == slice {
		return
	}
	if t.slices[name] == nil {
		t.slices[name] = map[string]*discovery.EndpointSlice{}
	}
	t.slices[name][slice.Name] = slice
	t.owner[key] = name
	t.dirty[name] = struct{}{}
}

// DeleteSlice forgets an EndpointSlice.
func (t *Tracker) DeleteSlice(key types.NamespacedName) {
	name, ok := t.owner[key]
	if !ok {
		return
	}
	delete(t.owner, key)
	delete(t.slices[name], key.Name)
	if len(t.slices[name]) == 0 {
		delete(t.slices, name)
	}
	t.dirty[name] = struct{}{}
}

// Service returns the Service as last seen, nil when there is none.
func (t *Tracker) Service(name ServiceName) *v1.Service { return t.services[name] }

// Table returns the Table as of the last Update. It is the Tracker's: Update changes it in place, but never the slices inside a Route.
func (t *Tracker) Table() *Table { return &t.table }

// Problems lists what of a Service and its slices is left out, sorted.
func (t *Tracker) Problems(name ServiceName) []Problem {
	e := t.entries[name]
	if e == nil || len(e.denied) == 0 {
		if e == nil {
			return nil
		}
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

// Update brings the Table up to date. It returns the Services whose Routes or health check changed, sorted, and all that were looked at.
func (t *Tracker) Update() (names, touched []ServiceName) {
	now := make(map[ServiceName]built, len(t.dirty))
	for name := range t.dirty {
		now[name] = t.rebuild(name)
	}
	t.claims.settle()
	for name := range t.claims.touched {
		if _, ok := now[name]; !ok {
			now[name] = t.build(name)
		}
	}
	t.claims.touched, t.dirty = emptied(t.claims.touched), emptied(t.dirty)
	t.claims.running = true
	touched = make([]ServiceName, 0, len(now))
	for name, one := range now {
		touched = append(touched, name)
		if e := t.entries[name]; e != nil && len(e.denied) > 0 {
			one.routes = slices.DeleteFunc(one.routes, func(r Route) bool { _, denied := e.denied[r.Key()]; return denied })
			now[name] = one
		}
		if t.same(name, one) {
			delete(now, name)
		}
	}
	names = slices.SortedFunc(maps.Keys(now), compareService)
	if len(now) > spliceLimit {
		t.merge(names, now)
		return names, touched
	}
	for _, name := range names {
		t.table.Set(name, now[name].routes, now[name].health)
	}
	return names, touched
}

// build is what a Service gives to the Table by itself.
func (t *Tracker) build(name ServiceName) built {
	s := t.services[name]
	if s == nil {
		return built{}
	}
	return buildService(s, slices.Collect(maps.Values(t.slices[name])), t.node)
}

// rebuild builds a Service and has what it asks for claimed, where that differs.
func (t *Tracker) rebuild(name ServiceName) built {
	one := t.build(name)
	if name == apiServer {
		t.claims.setServers(t.endpointsOf(name))
	}
	e := t.entries[name]
	var created int64
	if s := t.services[name]; s != nil {
		created = s.CreationTimestamp.Unix()
	}
	switch {
	case e == nil && len(one.asks)+len(one.problems) == 0:
		return one
	case e == nil:
		e = &entry{name: name, created: created, asks: one.asks}
		t.entries[name] = e
		t.claims.enter(e)
	case !slices.Equal(e.asks, one.asks) || e.created != created:
		t.claims.withdraw(e)
		e.asks, e.created = one.asks, created
		t.claims.enter(e)
	}
	if e.problems = one.problems; len(e.asks)+len(e.problems) == 0 {
		delete(t.entries, name)
	}
	return one
}

// apiServer is the Service whose endpoints are the API servers.
var apiServer = ServiceName{Namespace: "default", Name: "kubernetes"}

// endpointsOf are all endpoints of a Service, whatever their port's name and condition.
func (t *Tracker) endpointsOf(name ServiceName) (out []netip.AddrPort) {
	for _, slice := range t.slices[name] {
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

func (t *Tracker) same(name ServiceName, now built) bool {
	health, ok := t.table.HealthCheckOf(name)
	if ok != (now.health != nil) || ok && health != *now.health {
		return false
	}
	return routesEqual(t.table.Of(name), now.routes)
}

// merge makes the Table of the Services that stay and the changed ones, both sorted.
func (t *Tracker) merge(names []ServiceName, changed map[ServiceName]built) {
	var out Table
	total := len(t.table.Routes)
	for _, name := range names {
		total += len(changed[name].routes)
	}
	out.Routes = make([]Route, 0, total)
	for _, r := range t.table.Routes {
		if _, ok := changed[r.Service.ServiceName]; !ok {
			out.Routes = append(out.Routes, r)
		}
	}
	for _, h := range t.table.HealthChecks {
		if _, ok := changed[h.Service]; !ok {
			out.HealthChecks = append(out.HealthChecks, h)
		}
	}
	for _, name := range names {
		now := changed[name]
		out.Routes = append(out.Routes, now.routes...)
		if now.health != nil {
			out.HealthChecks = append(out.HealthChecks, *now.health)
		}
	}
	out.sort()
	t.table = out
}
