package hnslb

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// ledger is an HNS that executes all calls, and counts them.
type ledger struct {
	endpoints   map[hns.ID]hns.Endpoint
	balancers   map[hns.ID]hns.LoadBalancer
	next        int
	lists, done int
}

func newLedger() *ledger {
	return &ledger{endpoints: map[hns.ID]hns.Endpoint{}, balancers: map[hns.ID]hns.LoadBalancer{}}
}

func (l *ledger) id() hns.ID { l.next++; l.done++; return hns.IDOf(fmt.Sprint(l.next)) }

func (l *ledger) Network(context.Context, string) (hns.Network, error) {
	return hns.Network{ID: hns.IDOf("n"), Name: "cbr0"}, nil
}

func (l *ledger) Endpoints(context.Context) ([]hns.Endpoint, error) {
	l.lists++
	return slices.Collect(maps.Values(l.endpoints)), nil
}

func (l *ledger) LoadBalancers(context.Context) ([]hns.LoadBalancer, error) {
	l.lists++
	return slices.Collect(maps.Values(l.balancers)), nil
}

func (l *ledger) CreateEndpoint(_ context.Context, n hns.Network, e hns.Endpoint) (hns.ID, error) {
	e.ID, e.Network = l.id(), n.ID
	l.endpoints[e.ID] = e
	return e.ID, nil
}

func (l *ledger) DeleteEndpoint(_ context.Context, id hns.ID) error {
	l.done++
	for _, lb := range l.balancers {
		if slices.Contains(lb.Endpoints, id) {
			return fmt.Errorf("load balancer %s uses endpoint %s", lb.ID, id)
		}
	}
	delete(l.endpoints, id)
	return nil
}

func (l *ledger) CreateLoadBalancer(_ context.Context, lb hns.LoadBalancer) (hns.ID, error) {
	lb.ID = l.id()
	return lb.ID, l.put(lb)
}

func (l *ledger) ReplaceLoadBalancer(_ context.Context, lb hns.LoadBalancer) (hns.ID, error) {
	l.done++
	return lb.ID, l.put(lb)
}

func (l *ledger) put(lb hns.LoadBalancer) error {
	for _, id := range lb.Endpoints {
		if _, ok := l.endpoints[id]; !ok {
			return fmt.Errorf("there is no endpoint %s", id)
		}
	}
	l.balancers[lb.ID] = lb
	return nil
}

func (l *ledger) DeleteLoadBalancer(_ context.Context, id hns.ID) error {
	l.done++
	delete(l.balancers, id)
	return nil
}

// print returns the objects, endpoints by address.
func (l *ledger) print() (out []string) {
	for _, e := range l.endpoints {
		out = append(out, fmt.Sprintf("endpoint %v", e.Addrs))
	}
	for _, lb := range l.balancers {
		var to []string
		for _, id := range lb.Endpoints {
			to = append(to, l.endpoints[id].Addrs[0].String())
		}
		slices.Sort(to)
		out = append(out, fmt.Sprintf("%s:%d -> %v:%d", lb.VIP, lb.ExternalPort, to, lb.InternalPort))
	}
	slices.Sort(out)
	return out
}

// filled returns a Balancer that has created so many services, each with its own two endpoints.
func filled(t testing.TB, client hns.Client, services int) (*Balancer, *proxy.Table) {
	want := &proxy.Table{}
	for i := range services {
		want.Routes = append(want.Routes, clusterIP(i, i, 2*i, 2*i+1))
	}
	b := New(Config{Client: client, Network: "cbr0"})
	if err := b.Sync(t.Context(), want, nil); err != nil {
		t.Fatal(err)
	}
	return b, want
}

// exchange gives one of them another endpoint.
func exchange(t testing.TB, b *Balancer, want *proxy.Table, turn int) {
	want.Set(serviceName(7), []proxy.Route{clusterIP(7, 7, 14, 15+turn%2*20000)}, nil)
	if err := b.Sync(t.Context(), want, []proxy.ServiceName{serviceName(7)}); err != nil {
		t.Fatal(err)
	}
}

func serviceName(n int) proxy.ServiceName {
	return proxy.ServiceName{Namespace: "a", Name: fmt.Sprintf("s%05d", n)}
}

func address(net byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, net, byte(n >> 8), byte(n)})
}

// clusterIP returns the Route of a service at the front with that number.
func clusterIP(service, front int, endpoints ...int) proxy.Route {
	r := proxy.Route{Service: proxy.ServicePortName{ServiceName: serviceName(service)}, Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP,
		Front: netip.AddrPortFrom(address(96, front), 80)}
	for _, n := range endpoints {
		r.Backends = append(r.Backends, proxy.Endpoint{Addr: netip.AddrPortFrom(address(1, n), 8080)})
	}
	slices.SortFunc(r.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return r
}

// TestChangesAddUp: after any sequence of changes, with fronts that move between services and endpoints that they
// share, HNS has what a new Balancer would create for the last Table.
func TestChangesAddUp(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		step, whole := newLedger(), newLedger()
		b := New(Config{Client: step, Network: "cbr0"})
		want := &proxy.Table{}
		if err := b.Sync(t.Context(), want, nil); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			n := random.IntN(6)
			var routes []proxy.Route
			changed := []proxy.ServiceName{serviceName(n)}
			for _, at := range random.Perm(4)[:random.IntN(3)] {
				route := clusterIP(n, at, random.Perm(5)[:random.IntN(3)]...)
				if i := slices.IndexFunc(want.Routes, func(r proxy.Route) bool { return r.Front == route.Front }); i >= 0 {
					from := want.Routes[i].Service.ServiceName
					want.Set(from, slices.DeleteFunc(slices.Clone(want.Of(from)), func(r proxy.Route) bool { return r.Front == route.Front }), nil)
					changed = append(changed, from)
				}
				routes = append(routes, route)
			}
			random.Shuffle(len(changed), func(i, j int) { changed[i], changed[j] = changed[j], changed[i] })
			slices.SortStableFunc(routes, func(a, b proxy.Route) int { return cmp.Compare(a.Front.Addr().As4()[3], b.Front.Addr().As4()[3]) })
			want.Set(serviceName(n), routes, nil)
			lists := step.lists
			_, rest := proxy.RouteErrors(b.Sync(t.Context(), want, changed))
			if len(rest) > 0 || step.lists != lists {
				t.Fatalf("seed %d: %v, %d lists", seed, rest, step.lists-lists)
			}
		}
		if _, rest := proxy.RouteErrors(New(Config{Client: whole, Network: "cbr0"}).Sync(t.Context(), want, nil)); len(rest) > 0 {
			t.Fatal(rest)
		}
		if got, made := step.print(), whole.print(); !slices.Equal(got, made) {
			t.Fatalf("seed %d: step by step\n%v\nin one step\n%v\nof\n%s", seed, got, made, want)
		}
	}
}

// TestChangeCostsItself: neither the calls nor the memory for one endpoint's change, and so the computation, grow with
// the number of services.
func TestChangeCostsItself(t *testing.T) {
	cost := func(services int) (calls int, allocations float64) {
		l := newLedger()
		b, want := filled(t, l, services)
		if l.done != 3*services || l.lists != 2 {
			t.Errorf("%d services: %d calls cold, want %d, and %d lists", services, l.done, 3*services, l.lists)
		}
		turn := 0
		change := func() { turn++; exchange(t, b, want, turn) }
		before := l.done
		change()
		calls = l.done - before
		allocations = testing.AllocsPerRun(20, change)
		before = l.done
		if err := New(Config{Client: l, Network: "cbr0"}).Sync(t.Context(), want, nil); err != nil || l.done != before {
			t.Errorf("%d services: a new proxy: %v, %d calls", services, err, l.done-before)
		}
		return calls, allocations
	}
	few, fewAllocations := cost(20)
	many, manyAllocations := cost(2000)
	t.Logf("one change of 20 and of 2000 services: %d and %d calls, %.0f and %.0f allocations", few, many, fewAllocations, manyAllocations)
	if few != 3 || many != few || manyAllocations > 2*fewAllocations {
		t.Errorf("one change costs %d calls and %.0f allocations among 20 services, %d and %.0f among 2000", few, fewAllocations, many, manyAllocations)
	}
}

func BenchmarkChange(b *testing.B) {
	for _, services := range []int{20, 2000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			balancer, want := filled(b, quiet{newLedger()}, services)
			for i := 1; b.Loop(); i++ {
				exchange(b, balancer, want, i)
			}
		})
	}
}

// quiet is a ledger that does not check whether an endpoint is used.
type quiet struct{ *ledger }

func (q quiet) DeleteEndpoint(_ context.Context, id hns.ID) error {
	delete(q.endpoints, id)
	return nil
}
