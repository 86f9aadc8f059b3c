package kubeproxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// listener listens on a host where no two back ends can listen at the same place.
type listener struct {
	*proxytest.Backend
	t    *testing.T
	name string
	host map[proxy.FrontKey]string
}

func (l *listener) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	wanted := map[proxy.FrontKey]bool{}
	fronts(wanted, want.Routes)
	for c, who := range l.host {
		if who == l.name && !wanted[c] {
			delete(l.host, c)
		}
	}
	for c := range wanted {
		if who := l.host[c]; who != "" && who != l.name {
			l.t.Errorf("%s listens at %v while %s does", l.name, c, who)
		}
		l.host[c] = l.name
	}
	return l.Backend.Sync(ctx, want, changed)
}

// TestSplit: whatever changes, each Route is served by the right back end, and no front ever by two.
func TestSplit(t *testing.T) {
	host := map[proxy.FrontKey]string{}
	first := &listener{Backend: proxytest.NewBackend(), t: t, name: "first", host: host}
	rest := &listener{Backend: proxytest.NewBackend(), t: t, name: "rest", host: host}
	serves := func(r *proxy.Route) bool { return len(r.Backends) == 1 }
	s := NewSplit(first, rest, serves)
	name := func(i int) proxy.ServiceName {
		return proxy.ServiceName{Namespace: "a", Name: fmt.Sprintf("s%02d", i)}
	}
	table := &proxy.Table{}
	shared := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 80)
	}
	for range 600 {
		changed := []proxy.ServiceName{}
		for range 1 + rand.IntN(3) {
			i := rand.IntN(8)
			route := proxy.Route{Service: proxy.ServicePortName{ServiceName: name(i)}, Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP,
				Front: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80)}
			for n := range rand.IntN(3) {
				route.Backends = append(route.Backends, proxy.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), byte(n)}), 80)})
			}
			routes := []proxy.Route{route}
			if rand.IntN(4) == 0 {
				routes = nil
			}
			for f := range rand.IntN(3) { // a front of another Service moves to this one, in the same Sync
				pass := route
				pass.Kind, pass.Front = proxy.ExternalIP, shared(f)
				if j := slices.IndexFunc(table.Routes, func(r proxy.Route) bool { return r.Front == pass.Front }); j >= 0 {
					from := table.Routes[j].Service.ServiceName
					without := slices.DeleteFunc(slices.Clone(table.Of(from)), func(r proxy.Route) bool { return r.Front == pass.Front })
					table.Set(from, without, nil)
					changed = append(changed, from)
				}
				if routes != nil {
					routes = append(routes, pass)
				}
			}
			table.Set(name(i), routes, nil)
			changed = append(changed, name(i))
		}
		slices.SortFunc(changed, func(a, b proxy.ServiceName) int { return strings.Compare(a.Name, b.Name) })
		if changed = slices.Compact(changed); rand.IntN(5) == 0 {
			changed = nil
		}
		if err := s.Sync(t.Context(), table, changed); err != nil {
			t.Fatal(err)
		}
		for _, r := range table.Routes {
			want, not := rest, first
			if serves(&r) {
				want, not = first, rest
			}
			got, ok := want.Route(r.Protocol, r.Front)
			if _, both := not.Route(r.Protocol, r.Front); !ok || both || !got.Equal(&r) {
				t.Fatalf("%s is not served by %s alone: %v", r.Front, want.name, got)
			}
		}
		if len(host) != len(table.Routes) {
			t.Fatalf("%d fronts for %d routes", len(host), len(table.Routes))
		}
	}
}

// whole keeps the last Table of each Sync.
type whole struct{ tables []proxy.Table }

func (w *whole) Sync(_ context.Context, want *proxy.Table, _ []proxy.ServiceName) error {
	w.tables = append(w.tables, *want)
	return nil
}

// fill sets a field of a Table to what is not its zero value.
func fill(t *testing.T, field reflect.StructField, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.String:
		v.SetString("x")
	default:
		t.Fatalf("Table.%s is a %s: fill it here", field.Name, v.Kind())
	}
}

// TestSplitPassesAll: each back end gets every field of the Table, but only its own Routes, whichever way a Sync takes. The
// proxy itself serves the health checks.
func TestSplitPassesAll(t *testing.T) {
	route := func(name string, address byte, backends int) proxy.Route {
		return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: name}}, Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP,
			Front: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, address}), 80), Backends: make([]proxy.Endpoint, backends)}
	}
	var first, rest whole
	s := NewSplit(&first, &rest, func(r *proxy.Route) bool { return len(r.Backends) == 1 })
	for i, step := range []struct {
		routes  []proxy.Route
		changed []proxy.ServiceName
		syncs   int // of the first back end
	}{
		{[]proxy.Route{route("one", 1, 1), route("two", 2, 2)}, nil, 1},
		{[]proxy.Route{route("one", 1, 1), route("two", 2, 3)}, []proxy.ServiceName{{Namespace: "a", Name: "two"}}, 1},
		{[]proxy.Route{route("one", 1, 2), route("two", 2, 1)}, nil, 2}, // both fronts move
		{[]proxy.Route{route("one", 1, 1), route("two", 2, 2)}, []proxy.ServiceName{{Namespace: "a", Name: "one"}, {Namespace: "a", Name: "two"}}, 2},
	} {
		want := proxy.Table{Routes: step.routes}
		all := reflect.ValueOf(&want).Elem()
		for f := range all.NumField() {
			if field := all.Type().Field(f); field.Name != "Routes" {
				fill(t, field, all.Field(f))
			}
		}
		want.HealthChecks = []proxy.HealthCheck{{Service: proxy.ServiceName{Namespace: "a", Name: "two"}, Port: 30000}}
		health := slices.Clone(want.HealthChecks)
		first.tables, rest.tables = nil, nil
		if err := s.Sync(t.Context(), &want, step.changed); err != nil || len(first.tables) != step.syncs || len(rest.tables) != 1 {
			t.Fatalf("step %d: %v; %d and %d calls", i, err, len(first.tables), len(rest.tables))
		}
		if !slices.Equal(want.HealthChecks, health) {
			t.Errorf("step %d: the caller's health checks changed to %v", i, want.HealthChecks)
		}
		for _, got := range slices.Concat(first.tables, rest.tables) {
			for f := range all.NumField() {
				switch name := all.Type().Field(f).Name; name {
				case "Routes", "HealthChecks":
				default:
					if has := reflect.ValueOf(got).Field(f); !reflect.DeepEqual(has.Interface(), all.Field(f).Interface()) {
						t.Errorf("step %d: a back end gets %s %v, want %v", i, name, has, all.Field(f))
					}
				}
			}
		}
	}
}

// TestShare: the host has the union of both sets. The rules' user learns which addresses are new, even if the other
// one's call added them.
func TestShare(t *testing.T) {
	host := relaytest.NewAddresses()
	a, b := Share(host)
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	relayed := func(ctx context.Context, want []netip.Addr) ([]netip.Addr, error) {
		_, err := b.Set(ctx, relay.Local{Addresses: want})
		return nil, err
	}
	for _, step := range []struct {
		set         func(context.Context, []netip.Addr) ([]netip.Addr, error)
		addrs       []netip.Addr
		want, added string
	}{
		{a.Set, addrs("10.0.0.1", "10.0.0.3"), "10.0.0.1\n10.0.0.3", "[10.0.0.1 10.0.0.3]"},
		{relayed, addrs("10.0.0.2", "10.0.0.3"), "10.0.0.1\n10.0.0.2\n10.0.0.3", "[]"},
		{a.Set, nil, "10.0.0.2\n10.0.0.3", "[10.0.0.2]"},
		{a.Set, nil, "10.0.0.2\n10.0.0.3", "[]"},
		{relayed, nil, "", "[]"},
	} {
		if added, err := step.set(t.Context(), step.addrs); err != nil || host.String() != step.want || fmt.Sprint(added) != step.added {
			t.Errorf("%v: the host holds %q, want %q; new are %v, want %s; %v", step.addrs, host, step.want, added, step.added, err)
		}
	}
}
