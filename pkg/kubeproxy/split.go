package kubeproxy

import (
	"context"
	"errors"
	"slices"

	"github.com/winkube/winkube/pkg/proxy"
)

// Split serves the Routes that serves selects with the first back end, and all others with the second. Each front of a
// Table belongs to one Route, so to one back end. When a front moves, the old back end releases it before the new one
// serves it, because both listen at the same place. Use it from one goroutine.
type Split struct {
	first, rest proxy.Backend
	serves      func(*proxy.Route) bool

	firsts, rests proxy.Table // the last Table of each
}

// NewSplit returns a Split that has not called its back ends yet.
func NewSplit(first, rest proxy.Backend, serves func(*proxy.Route) bool) *Split {
	return &Split{first: first, rest: rest, serves: serves}
}

// fronts adds the fronts of routes to set.
func fronts(set map[proxy.FrontKey]bool, routes []proxy.Route) {
	for i := range routes {
		set[routes[i].Key()] = true
	}
}

// Sync implements proxy.Backend.
func (s *Split) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	wasFirst, wasRest := map[proxy.FrontKey]bool{}, map[proxy.FrontKey]bool{}
	toFirst, toRest := false, false
	s.firsts, s.rests = part(want, s.firsts.Routes), part(want, s.rests.Routes)
	moved := func(first, rest []proxy.Route) {
		for i := range first {
			toFirst = toFirst || wasRest[first[i].Key()]
		}
		for i := range rest {
			toRest = toRest || wasFirst[rest[i].Key()]
		}
	}
	if changed == nil {
		fronts(wasFirst, s.firsts.Routes)
		fronts(wasRest, s.rests.Routes)
		s.firsts.Routes, s.rests.Routes = s.divide(want.Routes)
		moved(s.firsts.Routes, s.rests.Routes)
	} else {
		for _, name := range changed {
			fronts(wasFirst, s.firsts.Of(name))
			fronts(wasRest, s.rests.Of(name))
		}
		for _, name := range changed {
			first, rest := s.divide(want.Of(name))
			s.firsts.Set(name, first, nil)
			s.rests.Set(name, rest, nil)
			moved(first, rest)
		}
	}
	return s.sync(ctx, changed, toFirst, toRest, wasRest)
}

// part returns a copy of t with other routes. The proxy serves the health checks itself.
func part(t *proxy.Table, routes []proxy.Route) proxy.Table {
	out := *t
	out.Routes, out.HealthChecks = routes, nil
	return out
}

// divide splits routes between the two back ends, in order.
func (s *Split) divide(routes []proxy.Route) (first, rest []proxy.Route) {
	for i := range routes {
		if r := &routes[i]; s.serves(r) {
			first = append(first, *r)
		} else {
			rest = append(rest, *r)
		}
	}
	return first, rest
}

// sync calls the back ends in the order in which fronts move between them. If fronts move both ways, the first back end
// is called twice: at first without the fronts that the other still holds.
func (s *Split) sync(ctx context.Context, changed []proxy.ServiceName, toFirst, toRest bool, wasRest map[proxy.FrontKey]bool) error {
	var errs []error
	switch {
	case toFirst && toRest:
		less := part(&s.firsts, slices.DeleteFunc(slices.Clone(s.firsts.Routes), func(r proxy.Route) bool { return wasRest[r.Key()] }))
		errs = append(errs, s.first.Sync(ctx, &less, changed))
	case !toFirst:
		errs = append(errs, s.first.Sync(ctx, &s.firsts, changed))
	}
	errs = append(errs, s.rest.Sync(ctx, &s.rests, changed))
	if toFirst {
		errs = append(errs, s.first.Sync(ctx, &s.firsts, changed))
	}
	return errors.Join(errs...)
}
