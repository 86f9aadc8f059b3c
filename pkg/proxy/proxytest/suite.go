// Package proxytest has what the tests of the service proxy share: the suite that every back end passes, and stateful
// fakes.
//
//	suite: Table after Table --> proxy.Backend --> Host.Observe --> as the Table says?
package proxytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// Host is the host that a back end under test changes, seen by the suite from outside. It may be simulated.
type Host interface {
	// Endpoint returns the address of the n-th endpoint (n from 0 to 3) of a protocol; the endpoint responds with its
	// identity.
	Endpoint(n int, protocol v1.Protocol) netip.AddrPort
	// Front returns the n-th address (n from 0 to 7) that may be the front of a Route.
	Front(n int) netip.AddrPort
	// Observe returns the endpoints that traffic to a Route's front reaches, sorted; none if it is refused or dropped.
	Observe(t *testing.T, route proxy.Route) []netip.AddrPort
	// Occupy takes a front as another program would, until the returned function is called; nil: nothing can block a
	// front here.
	Occupy(t *testing.T, protocol v1.Protocol, front netip.AddrPort) (free func())
	// Traces lists what the back end has left on the host.
	Traces(t *testing.T) []string
	// Writes returns the number of changes that the back end has made to the host.
	Writes() int
}

// Injector is a Host where one call, or one front, in ten can be made to fail. Inject is called before each Sync.
type Injector interface{ Inject(on bool) }

// OneInTen is true with a probability of one in ten.
func OneInTen() bool { return rand.IntN(10) == 0 }

// Run runs the suite. start returns a new back end on a clean host; it is called for each test.
func Run(t *testing.T, start func(t *testing.T) (proxy.Backend, Host)) {
	t.Run("states in order", func(t *testing.T) {
		r := newRun(t, start)
		for i := range states {
			r.to(i, false)
			r.to(i, true)
		}
	})
	t.Run("states in random order", func(t *testing.T) {
		r := newRun(t, start)
		for range 25 {
			r.to(rand.IntN(len(states)), rand.IntN(3) == 0)
		}
	})
	t.Run("same table changes nothing", func(t *testing.T) {
		r := newRun(t, start)
		for i := range states {
			r.to(i, true)
			writes := r.host.Writes()
			r.sync(r.table, nil)
			r.sync(r.table, []proxy.ServiceName{service(0), service(1), service(2)})
			if now := r.host.Writes(); now != writes {
				t.Errorf("state %q again made %d changes", states[i].name, now-writes)
			}
		}
	})
	t.Run("empty removes every trace", func(t *testing.T) {
		r := newRun(t, start)
		for i := range states {
			r.to(i, true)
			r.to(0, i%2 == 0)
			if traces := r.host.Traces(t); len(traces) > 0 {
				t.Errorf("after state %q the empty table left %v", states[i].name, traces)
			}
		}
	})
	t.Run("one route fails, the others go on", testOccupied(start))
	t.Run("one call in ten fails", testInjected(start))
}

// testInjected goes through the states in order and then in random order while calls fail, and retries as the loop
// does.
func testInjected(start func(t *testing.T) (proxy.Backend, Host)) func(t *testing.T) {
	return func(t *testing.T) {
		r := newRun(t, start)
		injector, ok := r.host.(Injector)
		if !ok {
			t.Skip("nothing can be made to fail here")
		}
		syncs, failed := 0, 0
		for i := range len(states) + 50 {
			state := i
			if i >= len(states) {
				state = rand.IntN(len(states))
			}
			next := states[state].table(r.host)
			changed := difference(r.table, next)
			if rand.IntN(4) == 0 {
				changed = nil
			}
			for again := true; again; syncs++ {
				injector.Inject(true)
				err := r.backend.Sync(t.Context(), next, changed)
				if again = err != nil; again {
					changed = retried(err)
					failed++
				}
				if failed > 1000 {
					t.Fatalf("state %q is not reached: %v", states[state].name, err)
				}
			}
			injector.Inject(false)
			r.table = next
			for _, route := range next.Routes {
				r.check(route)
			}
		}
		r.sync(&proxy.Table{}, nil)
		if traces := r.host.Traces(t); len(traces) > 0 {
			t.Errorf("the empty table left %v", traces)
		}
		t.Logf("%d states reached, %d of %d Syncs failed", len(states)+50, failed, syncs)
	}
}

// retried returns the changed argument of the loop's retry: the Services of the Routes that failed, or nil for
// everything.
func retried(err error) []proxy.ServiceName {
	routes, rest := proxy.RouteErrors(err)
	if len(rest) > 0 {
		return nil
	}
	names := []proxy.ServiceName{}
	for _, r := range routes {
		names = append(names, r.Route.Service.ServiceName)
	}
	return names
}

func testOccupied(start func(t *testing.T) (proxy.Backend, Host)) func(t *testing.T) {
	return func(t *testing.T) {
		r := newRun(t, start)
		table := states[len(states)-1].table(r.host)
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			i := slices.IndexFunc(table.Routes, func(r proxy.Route) bool {
				return r.Protocol == protocol && len(r.Backends) > 0 && r.Kind == proxy.ClusterIP
			})
			taken := table.Routes[i]
			free := r.host.Occupy(t, protocol, taken.Front)
			if free == nil {
				continue
			}
			err := r.backend.Sync(t.Context(), table, nil)
			failed, rest := proxy.RouteErrors(err)
			if len(rest) > 0 || len(failed) != 1 || failed[0].Route.Front != taken.Front || failed[0].Route.Service != taken.Service {
				t.Errorf("Sync with %s taken by another program: %v", taken.Front, err)
			}
			for _, route := range table.Routes {
				if route.Front != taken.Front || route.Protocol != protocol {
					r.check(route)
				}
			}
			free()
			r.sync(table, []proxy.ServiceName{taken.Service.ServiceName}) // as the loop does after a while
			r.check(taken)
			r.sync(&proxy.Table{}, nil)
		}
	}
}

// run is one back end with its last Table.
type run struct {
	t       *testing.T
	backend proxy.Backend
	host    Host
	table   *proxy.Table
}

func newRun(t *testing.T, start func(t *testing.T) (proxy.Backend, Host)) *run {
	backend, host := start(t)
	r := &run{t: t, backend: backend, host: host, table: &proxy.Table{}}
	r.sync(r.table, nil)
	return r
}

// to brings the back end to a state, with changed set or nil, and checks it.
func (r *run) to(state int, whole bool) {
	r.t.Helper()
	next := states[state].table(r.host)
	changed := difference(r.table, next)
	if whole {
		changed = nil
	}
	gone := slices.DeleteFunc(slices.Clone(r.table.Routes), func(old proxy.Route) bool {
		return slices.ContainsFunc(next.Routes, func(n proxy.Route) bool { return n.Front == old.Front && n.Protocol == old.Protocol })
	})
	r.t.Logf("state %q, changed %v", states[state].name, changed)
	r.sync(next, changed)
	for _, route := range next.Routes {
		r.check(route)
	}
	for _, route := range gone {
		if got := r.host.Observe(r.t, route); len(got) > 0 {
			r.t.Errorf("state %q: %s %s is gone but reaches %v", states[state].name, route.Protocol, route.Front, got)
		}
	}
}

func (r *run) sync(table *proxy.Table, changed []proxy.ServiceName) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := r.backend.Sync(ctx, table, changed); err != nil {
		r.t.Errorf("Sync: %v\n%s", err, table)
	}
	r.table = table
}

func (r *run) check(route proxy.Route) {
	r.t.Helper()
	var want []netip.AddrPort
	for _, e := range route.Targets() {
		want = append(want, e.Addr)
	}
	slices.SortFunc(want, netip.AddrPort.Compare)
	if got := r.host.Observe(r.t, route); !slices.Equal(got, want) {
		r.t.Errorf("%s %s reaches %v, want %v", route.Protocol, route.Front, got, want)
	}
}

// difference returns the Services whose Routes differ; never nil, because nil means "unknown".
func difference(a, b *proxy.Table) []proxy.ServiceName {
	changed := []proxy.ServiceName{}
	for n := range 3 {
		if fmt.Sprint(a.Of(service(n))) != fmt.Sprint(b.Of(service(n))) {
			changed = append(changed, service(n))
		}
	}
	return changed
}

func service(n int) proxy.ServiceName {
	return proxy.ServiceName{Namespace: "suite", Name: fmt.Sprintf("s%d", n)}
}

// state is one Table of the suite.
type state struct {
	name string
	rows string
}

// states: each row is "service kind protocol front endpoints", endpoints by number, "t" after a terminating one. The
// first state is empty, the last has everything.
var states = []state{
	{"empty", ``},
	{"one endpoint", `0 ClusterIP TCP 0 0`},
	{"another endpoint", `0 ClusterIP TCP 0 1`},
	{"three endpoints", `0 ClusterIP TCP 0 0,1,2`},
	{"two endpoints and one terminating", `0 ClusterIP TCP 0 0,1t,2`},
	{"only terminating", `0 ClusterIP TCP 0 1t`},
	{"no endpoint", `0 ClusterIP TCP 0 -`},
	{"another front", `0 ClusterIP TCP 1 0,1`},
	{"udp", `0 ClusterIP UDP 0 0,1`},
	{"udp without endpoint", `0 ClusterIP UDP 0 -`},
	{"both protocols on one front", `0 ClusterIP TCP 0 0
		0 ClusterIP UDP 0 1`},
	{"two services on one front, one for each protocol", `0 ClusterIP TCP 0 0
		1 ExternalIP UDP 0 1`},
	{"and they swap protocols", `0 ClusterIP UDP 0 0
		1 ExternalIP TCP 0 1,2`},
	{"and one takes both", `1 ExternalIP TCP 0 1
		1 ExternalIP UDP 0 -`},
	{"the front passes to another service", `1 ClusterIP TCP 0 3`},
	{"and back, with another front passing the other way", `0 ClusterIP TCP 0 0
		1 ExternalIP TCP 3 1`},
	{"both fronts pass to the other service", `0 ExternalIP TCP 3 0
		1 ClusterIP TCP 0 1`},
	{"a front passes to a service that serves it otherwise", `0 ClusterIP TCP 1 0
		1 LoadBalancer TCP 3 1,2`},
	{"and to one without an endpoint", `2 ExternalIP TCP 3 -`},
	{"and to one that stands before it", `0 ExternalIP TCP 3 2
		2 ClusterIP TCP 0 1`},
	{"three services", `0 ClusterIP TCP 0 0,1
		1 ClusterIP TCP 1 1
		2 ClusterIP UDP 2 2`},
	{"every kind", `0 ClusterIP TCP 0 0,1
		0 ExternalIP TCP 3 0,1
		0 LoadBalancer TCP 4 1
		1 ClusterIP UDP 2 2,3
		1 ExternalIP UDP 5 2
		2 ClusterIP TCP 6 -`},
}

func (s state) table(host Host) *proxy.Table {
	table := &proxy.Table{}
	for line := range strings.Lines(s.rows) {
		f := strings.Fields(line)
		if len(f) != 5 {
			continue
		}
		number := func(text string) (n int) {
			if _, err := fmt.Sscan(text, &n); err != nil {
				panic("bad row: " + line)
			}
			return n
		}
		route := proxy.Route{Service: proxy.ServicePortName{ServiceName: service(number(f[0])), Port: f[2] + f[3]}, Kind: proxy.Kind(f[1]),
			Protocol: v1.Protocol(f[2]), Front: host.Front(number(f[3]))}
		for text := range strings.SplitSeq(f[4], ",") {
			if text != "-" {
				name, terminating := strings.CutSuffix(text, "t")
				route.Backends = append(route.Backends, proxy.Endpoint{Addr: host.Endpoint(number(name), route.Protocol), Terminating: terminating})
			}
		}
		slices.SortFunc(route.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
		table.Routes = append(table.Routes, route)
	}
	return table
}
