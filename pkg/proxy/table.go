package proxy

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
)

func compareService(a, b ServiceName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func compareRoute(a, b Route) int {
	return cmp.Or(compareService(a.Service.ServiceName, b.Service.ServiceName), cmp.Compare(a.Service.Port, b.Service.Port),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Protocol, b.Protocol), a.Front.Compare(b.Front))
}

// Equal reports whether two Routes are equal.
func (r *Route) Equal(o *Route) bool {
	return r.Service == o.Service && r.Kind == o.Kind && r.Protocol == o.Protocol && r.Front == o.Front && r.Affinity == o.Affinity &&
		r.Drop == o.Drop && r.KeepClient == o.KeepClient && slices.Equal(r.Sources, o.Sources) && slices.Equal(r.Backends, o.Backends) &&
		slices.Equal(r.Near, o.Near)
}

func routesEqual(a, b []Route) bool {
	return slices.EqualFunc(a, b, func(x, y Route) bool { return x.Equal(&y) })
}

// Targets returns the back ends for new traffic: those that are not terminating, or all if no other is left. The caller
// must not modify the result.
func (r *Route) Targets() []Endpoint { return forNewTraffic(r.Backends) }

// NearTargets is Targets for Near.
func (r *Route) NearTargets() []Endpoint { return forNewTraffic(r.Near) }

func forNewTraffic(backends []Endpoint) []Endpoint {
	terminating := func(e Endpoint) bool { return e.Terminating }
	if !slices.ContainsFunc(backends, terminating) {
		return backends
	}
	var out []Endpoint
	for _, e := range backends {
		if !e.Terminating {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return backends
	}
	return out
}

// Allows reports whether a client may use the Route (spec.loadBalancerSourceRanges). This host's own connections to an
// address that it has come from that same address, and are allowed as in upstream.
func (r *Route) Allows(client netip.Addr) bool {
	if len(r.Sources) == 0 || client == r.Front.Addr() {
		return true
	}
	return slices.ContainsFunc(r.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// Of returns the Routes of one Service, a part of t.Routes found by binary search.
func (t *Table) Of(name ServiceName) []Route {
	from, to := t.span(name)
	return t.Routes[from:to]
}

func (t *Table) span(name ServiceName) (from, to int) {
	from = sort.Search(len(t.Routes), func(i int) bool { return compareService(t.Routes[i].Service.ServiceName, name) >= 0 })
	to = from
	for to < len(t.Routes) && t.Routes[to].Service.ServiceName == name {
		to++
	}
	return from, to
}

// HealthCheckOf returns the health check node port of one Service.
func (t *Table) HealthCheckOf(name ServiceName) (HealthCheck, bool) {
	i, ok := t.healthIndex(name)
	if !ok {
		return HealthCheck{}, false
	}
	return t.HealthChecks[i], true
}

func (t *Table) healthIndex(name ServiceName) (int, bool) {
	return slices.BinarySearchFunc(t.HealthChecks, name, func(h HealthCheck, n ServiceName) int { return compareService(h.Service, n) })
}

// Set replaces in place one Service's Routes, sorted, and its health check node port; nil: none.
func (t *Table) Set(name ServiceName, routes []Route, health *HealthCheck) {
	from, to := t.span(name)
	if to-from == len(routes) {
		copy(t.Routes[from:to], routes)
	} else {
		t.Routes = slices.Replace(t.Routes, from, to, routes...)
	}
	i, ok := t.healthIndex(name)
	switch {
	case ok && health != nil:
		t.HealthChecks[i] = *health
	case ok:
		t.HealthChecks = slices.Delete(t.HealthChecks, i, i+1)
	case health != nil:
		t.HealthChecks = slices.Insert(t.HealthChecks, i, *health)
	}
}

// Fprint writes the Table as aligned text, one Route per line, as `proxy table` and /debug/table show it.
func (t *Table) Fprint(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SERVICE\tPORT\tKIND\tPROTOCOL\tFRONT\tAFFINITY\tSOURCES\tBACKENDS")
	for i := range t.Routes {
		r := &t.Routes[i]
		front := r.Front.String()
		if r.Front.Addr().IsUnspecified() {
			front = fmt.Sprintf("node IPv%s:%d", map[bool]string{true: "4", false: "6"}[r.Front.Addr().Is4()], r.Front.Port())
		}
		affinity := "-"
		if r.Affinity > 0 {
			affinity = r.Affinity.String()
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Service.ServiceName, orDash(r.Service.Port), r.Kind, r.Protocol, front, affinity,
			orDash(join(r.Sources)), r.backendsText())
	}
	if err := tab.Flush(); err != nil {
		return fmt.Errorf("cannot print table: %w", err)
	}
	if len(t.HealthChecks) == 0 {
		return nil
	}
	fmt.Fprintln(tab, "\nHEALTH CHECK\tPORT\tLOCAL ENDPOINTS")
	for _, h := range t.HealthChecks {
		fmt.Fprintf(tab, "%s\t%d\t%d\n", h.Service, h.Port, h.LocalEndpoints)
	}
	if err := tab.Flush(); err != nil {
		return fmt.Errorf("cannot print table: %w", err)
	}
	return nil
}

// String returns the output of Fprint.
func (t *Table) String() string {
	var b strings.Builder
	_ = t.Fprint(&b) // a Builder never fails
	return b.String()
}

func (r *Route) backendsText() string {
	text := endpointsText(r.Backends)
	switch {
	case text == "" && r.Drop:
		text = "drop"
	case text == "":
		text = "reject"
	}
	if len(r.Near) > 0 {
		text += "; from this node " + endpointsText(r.Near)
	}
	return text
}

func endpointsText(list []Endpoint) string {
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = e.Addr.String()
		if e.Local {
			parts[i] += " local"
		}
		if e.Terminating {
			parts[i] += " terminating"
		}
	}
	return strings.Join(parts, ", ")
}

func join[T fmt.Stringer](list []T) string {
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = e.String()
	}
	return strings.Join(parts, ",")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// RouteError says why one Route is not served. Sync joins RouteErrors; the loop retries their Services.
type RouteError struct {
	Route Route
	Err   error
}

func (e *RouteError) Error() string {
	port := ""
	if e.Route.Service.Port != "" {
		port = ":" + e.Route.Service.Port
	}
	return fmt.Sprintf("cannot serve %s%s at %s %s %s: %v", e.Route.Service.ServiceName, port, e.Route.Kind, e.Route.Protocol, e.Route.Front, e.Err)
}

func (e *RouteError) Unwrap() error { return e.Err }

// RouteErrors separates joined errors: those of single Routes, and the rest.
func RouteErrors(err error) (routes []*RouteError, rest []error) {
	switch e := err.(type) {
	case nil:
	case *RouteError:
		routes = append(routes, e)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			r, o := RouteErrors(one)
			routes, rest = append(routes, r...), append(rest, o...)
		}
	default:
		rest = append(rest, err)
	}
	return routes, rest
}
