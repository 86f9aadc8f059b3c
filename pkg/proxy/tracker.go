package proxy

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Tracker keeps the Table of a stream of events. After any events in any order its Table is what Build makes of the objects that are
// left; an event costs what its own Service costs, whatever the number of others. It is not safe for concurrent use.
type Tracker struct {
	node     NodeInfo
	services map[ServiceName]*v1.Service
	slices   map[ServiceName]map[string]*discovery.EndpointSlice // by the slice's name
	owner    map[types.NamespacedName]ServiceName                // of each slice
	dirty    map[ServiceName]struct{}
	problems map[ServiceName][]Problem
	table    Table
}

// NewTracker returns an empty Tracker.
func NewTracker(node NodeInfo) *Tracker {
	return &Tracker{node: node, services: map[ServiceName]*v1.Service{}, slices: map[ServiceName]map[string]*discovery.EndpointSlice{},
		owner: map[types.NamespacedName]ServiceName{}, dirty: map[ServiceName]struct{}{}, problems: map[ServiceName][]Problem{}}
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

// Problems lists what of a Service and its slices is left out.
func (t *Tracker) Problems(name ServiceName) []Problem { return t.problems[name] }

// AllProblems lists what is left out of all Services, sorted.
func (t *Tracker) AllProblems() []Problem {
	out := slices.Concat(slices.Collect(maps.Values(t.problems))...)
	sortProblems(out)
	return out
}

// spliceLimit is the number of Services from which on making the whole Table anew is cheaper than changing it in place.
const spliceLimit = 32

// Update brings the Table up to date. It returns the Services whose Routes or health check changed, sorted, and all that were looked at.
func (t *Tracker) Update() (names, touched []ServiceName) {
	changed := map[ServiceName]built{}
	for name := range t.dirty {
		var now built
		if s := t.services[name]; s != nil {
			now = buildService(s, slices.Collect(maps.Values(t.slices[name])), t.node)
		}
		if delete(t.problems, name); len(now.problems) > 0 {
			t.problems[name] = now.problems
		}
		if !t.same(name, now) {
			changed[name] = now
		}
	}
	touched = slices.Collect(maps.Keys(t.dirty))
	clear(t.dirty)
	names = slices.SortedFunc(maps.Keys(changed), compareService)
	if len(changed) > spliceLimit {
		t.merge(names, changed)
		return names, touched
	}
	for _, name := range names {
		t.table.Set(name, changed[name].routes, changed[name].health)
	}
	return names, touched
}

func (t *Tracker) same(name ServiceName, now built) bool {
	health, ok := t.table.HealthCheckOf(name)
	if ok != (now.health != nil) || ok && health != *now.health {
		return false
	}
	return routesEqual(t.table.Of(name), now.routes)
}

// merge makes the Table anew of the Services that stay and the changed ones, both sorted.
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
