package connect

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// fakeKernel has maps in memory.
type fakeKernel struct {
	Contents
	opened, refuses bool
	fails           func(Op) error
	openErr         error
	attachErr       error
	attaches        int
	ops             []Op
	watch           func()
	opens           int
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{Contents: Contents{map[Key]Front{}, map[SlotKey]Endpoint{}, map[MemberKey]uint32{}}, refuses: true}
}

func (k *fakeKernel) Open() error {
	if k.openErr == nil {
		k.opened = true
	}
	k.opens++
	return k.openErr
}
func (k *fakeKernel) Attach() error            { k.attaches++; return k.attachErr }
func (k *fakeKernel) Refuses() bool            { return k.refuses }
func (k *fakeKernel) Check() ([]string, error) { return nil, nil }
func (k *fakeKernel) Close()                   {}

func (k *fakeKernel) Read() (*Contents, error) {
	return &Contents{maps.Clone(k.Fronts), maps.Clone(k.Slots), maps.Clone(k.Members)}, nil
}

func (k *fakeKernel) Do(op Op) error {
	if k.fails != nil {
		if err := k.fails(op); err != nil {
			return err
		}
	}
	switch op.Kind {
	case PutFront:
		k.Fronts[op.Key] = op.Front
	case PutSlot:
		k.Slots[op.Slot] = op.Endpoint
	case PutMember:
		k.Members[op.Member] = op.State
	case DeleteFront:
		delete(k.Fronts, op.Key)
	case DeleteSlot:
		delete(k.Slots, op.Slot)
	case DeleteMember:
		delete(k.Members, op.Member)
	}
	k.ops = append(k.ops, op)
	if k.watch != nil {
		k.watch()
	}
	return nil
}

func (k *fakeKernel) EndFlows(func(Key, Endpoint) bool) (int, error) { return 0, nil }
func (k *fakeKernel) Decisions() (tcp, udp, refused uint64)          { return 0, 0, 0 }
func (k *fakeKernel) Uses() []Use                                    { return nil }

func (k *fakeKernel) Remove() error {
	fresh := newFakeKernel()
	k.Contents, k.opened = fresh.Contents, false
	return nil
}

// String prints the meaning of the maps.
func (k *fakeKernel) String() string {
	var lines []string
	for key, f := range k.Fronts {
		var to []string
		for i := range f.Count {
			to = append(to, k.Slots[SlotKey{f.ID, i}].AddrPort().String())
		}
		for m, state := range k.Members {
			if m.Front == f.ID && state == draining {
				to = append(to, m.AddrPort().String()+" draining")
			}
		}
		slices.Sort(to)
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s affinity %d: %s", key, f.Affinity, strings.Join(to, ", "))))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// route parses "SERVICE FRONT ENDPOINTS": an endpoint that ends in t terminates.
func route(text string, change ...func(*proxy.Route)) proxy.Route {
	f := strings.Fields(text)
	r := proxy.Route{Service: proxy.ServicePortName{ServiceName: name(f[0])}, Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: netip.MustParseAddrPort(f[1])}
	for _, one := range f[2:] {
		addr, terminating := strings.CutSuffix(one, "t")
		r.Backends = append(r.Backends, proxy.Endpoint{Addr: netip.MustParseAddrPort(addr), Terminating: terminating})
	}
	slices.SortFunc(r.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	for _, c := range change {
		c(&r)
	}
	return r
}

func name(text string) proxy.ServiceName { return proxy.ServiceName{Namespace: "ns", Name: text} }

func tableOf(routes ...proxy.Route) *proxy.Table {
	slices.SortFunc(routes, func(a, b proxy.Route) int { return strings.Compare(a.Service.Name, b.Service.Name) })
	return &proxy.Table{Routes: routes}
}

func udp(r *proxy.Route)    { r.Protocol = v1.ProtocolUDP }
func drop(r *proxy.Route)   { r.Drop = true }
func sticky(r *proxy.Route) { r.Affinity = time.Minute }

func TestDiff(t *testing.T) {
	const front = "a 10.96.0.1:80 "
	for _, test := range []struct{ name, old, next, want string }{
		{"new", "", front + "10.1.0.1:8080 10.1.0.2:8080t", `put member 7/10.1.0.1:8080 = target
			put member 7/10.1.0.2:8080 = draining
			put slot 7/0 = 10.1.0.1:8080
			put front TCP 10.96.0.1:80 = 7: 1 endpoints, affinity 0s`},
		{"same", front + "10.1.0.1:80", front + "10.1.0.1:80", ""},
		{"one more", front + "10.1.0.2:80", front + "10.1.0.1:80 10.1.0.2:80", `put member 7/10.1.0.1:80 = target
			put slot 7/1 = 10.1.0.1:80
			put front TCP 10.96.0.1:80 = 7: 2 endpoints, affinity 0s`},
		{"one fewer: the front first", front + "10.1.0.1:80 10.1.0.2:80", front + "10.1.0.2:80", `put slot 7/0 = 10.1.0.2:80
			put front TCP 10.96.0.1:80 = 7: 1 endpoints, affinity 0s
			delete slot 7/1
			delete member 7/10.1.0.1:80`},
		{"another keeps the slot", front + "10.1.0.1:80 10.1.0.2:80", front + "10.1.0.2:80 10.1.0.3:80", `put member 7/10.1.0.3:80 = target
			put slot 7/0 = 10.1.0.3:80
			delete member 7/10.1.0.1:80`},
		{"terminates", front + "10.1.0.1:80 10.1.0.2:80", front + "10.1.0.1:80 10.1.0.2:80t", `put member 7/10.1.0.2:80 = draining
			put front TCP 10.96.0.1:80 = 7: 1 endpoints, affinity 0s
			delete slot 7/1`},
		{"only terminating serve", front + "10.1.0.1:80", front + "10.1.0.1:80t", ""},
		{"none: refuse", front + "10.1.0.1:80", front, `put front TCP 10.96.0.1:80 = 7: 0 endpoints, affinity 0s
			delete slot 7/0
			delete member 7/10.1.0.1:80`},
		{"gone", front + "10.1.0.1:80", "", `delete front TCP 10.96.0.1:80
			delete slot 7/0
			delete member 7/10.1.0.1:80`},
		{"IPv6", "", "a [fd00::1]:53 [fd01::1]:53", `put member 7/[fd01::1]:53 = target
			put slot 7/0 = [fd01::1]:53
			put front TCP [fd00::1]:53 = 7: 1 endpoints, affinity 0s`},
	} {
		t.Run(test.name, func(t *testing.T) {
			entry := func(text string, old *Entry) *Entry {
				if text == "" {
					return nil
				}
				r := route(text)
				return entryOf(&r, 7, old)
			}
			old := entry(test.old, nil)
			var got []string
			for _, op := range diff(old, entry(test.next, old)) {
				got = append(got, op.String())
			}
			if want := strings.Join(strings.Fields(test.want), " "); strings.Join(got, " ") != want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), test.want)
			}
		})
	}
}

func TestServes(t *testing.T) {
	for _, test := range []struct {
		what          string
		route         proxy.Route
		want, refuses bool
	}{
		{"ClusterIP", route("a 10.96.0.1:80 10.1.0.1:80"), true, true},
		{"UDP", route("a 10.96.0.1:80 10.1.0.1:80", udp), true, true},
		{"SCTP", route("a 10.96.0.1:80 10.1.0.1:80", func(r *proxy.Route) { r.Protocol = v1.ProtocolSCTP }), false, true},
		{"node port", route("a 0.0.0.0:80 10.1.0.1:80", func(r *proxy.Route) { r.Kind = proxy.NodePort }), false, true},
		{"external IP", route("a 192.0.2.1:80 10.1.0.1:80", func(r *proxy.Route) { r.Kind = proxy.ExternalIP }), false, true},
		{"load balancer", route("a 192.0.2.1:80 10.1.0.1:80", func(r *proxy.Route) { r.Kind = proxy.LoadBalancer }), false, true},
		{"no endpoint", route("a 10.96.0.1:80"), true, true},
		{"no endpoint, old kernel", route("a 10.96.0.1:80"), false, false},
		{"drops", route("a 10.96.0.1:80", drop), false, true},
		{"leads to itself", route("a 10.96.0.1:80 10.1.0.1:80 10.96.0.1:80"), false, true},
		{"another family", route("a 10.96.0.1:80 [fd00::1]:80"), false, true},
	} {
		if got := Serves(&test.route, test.refuses); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func newBalancer(t *testing.T, k *fakeKernel, limits Limits) *Balancer {
	b := New(k, limits)
	t.Cleanup(b.Close)
	return b
}

func apply(t *testing.T, b *Balancer, table *proxy.Table, changed ...proxy.ServiceName) {
	t.Helper()
	if err := b.Sync(t.Context(), table, changed); err != nil {
		t.Error(err)
	}
}

func (k *fakeKernel) expect(t *testing.T, want string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(want) {
		lines = append(lines, strings.TrimSpace(line))
	}
	if got := k.String(); got != strings.Join(lines, "\n") {
		t.Errorf("maps have\n%s\nwant\n%s", got, want)
	}
}

func TestFrontPassesToAnotherService(t *testing.T) {
	k := newFakeKernel()
	b := newBalancer(t, k, Limits{})
	apply(t, b, tableOf(route("a 10.96.0.1:80 10.1.0.1:80"), route("b 10.96.0.2:80 10.1.0.2:80", udp)))
	for _, order := range [][]proxy.ServiceName{{name("a"), name("b")}, {name("b"), name("a")}} {
		apply(t, b, tableOf(route("b 10.96.0.1:80 10.1.0.3:80", sticky)), order...)
		k.expect(t, "TCP 10.96.0.1:80 affinity 60: 10.1.0.3:80")
		apply(t, b, tableOf(route("a 10.96.0.1:80 10.1.0.1:80")), order...)
		k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80")
	}
}

// TestTakeOver: what a previous proxy left is brought to the Table, and correct entries are not written again.
func TestTakeOver(t *testing.T) {
	k := newFakeKernel()
	apply(t, newBalancer(t, k, Limits{}), tableOf(route("a 10.96.0.1:80 10.1.0.1:80 10.1.0.2:80"), route("b 10.96.0.2:80 10.1.0.2:80")))
	k.Slots[SlotKey{4, 4}] = Endpoint{Port: 1}
	k.Members[MemberKey{4, Endpoint{Port: 1}}] = target
	k.ops = nil
	b := newBalancer(t, k, Limits{})
	apply(t, b, tableOf(route("a 10.96.0.1:80 10.1.0.1:80 10.1.0.2:80")))
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80, 10.1.0.2:80")
	if len(k.ops) != 5 || len(k.Slots) != 2 || len(k.Members) != 2 {
		t.Errorf("wrote %v, have %v %v", k.ops, k.Slots, k.Members)
	}
	k.ops = nil
	apply(t, b, tableOf(route("a 10.96.0.1:80 10.1.0.1:80 10.1.0.2:80")))
	if len(k.ops) > 0 {
		t.Errorf("wrote %v for the same Table", k.ops)
	}
	apply(t, b, &proxy.Table{})
	if k.opened {
		t.Error("the empty Table leaves programs")
	}
}

func TestTableLargerThanMaps(t *testing.T) {
	k := newFakeKernel()
	b := newBalancer(t, k, Limits{Fronts: 2, Endpoints: 3})
	large := tableOf(route("a 10.96.0.1:80 10.1.0.1:80 10.1.0.2:80"), route("b 10.96.0.2:80 10.1.0.1:80 10.1.0.2:80"), route("c 10.96.0.3:80 10.1.0.1:80"), route("d 10.96.0.4:80"))
	apply(t, b, large)
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80, 10.1.0.2:80\nTCP 10.96.0.3:80 affinity 0: 10.1.0.1:80")
	if len(b.left) != 2 {
		t.Errorf("left are %v", b.left)
	}
	// A front that grows beyond the limit is relayed too, never served with a part of its endpoints.
	apply(t, b, tableOf(large.Routes[0], large.Routes[1], route("c 10.96.0.3:80 10.1.0.1:80 10.1.0.2:80"), large.Routes[3]), name("c"))
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80, 10.1.0.2:80")
	small := tableOf(large.Routes[1], large.Routes[3])
	apply(t, b, small, name("a"), name("c"))
	apply(t, b, small)
	k.expect(t, "TCP 10.96.0.2:80 affinity 0: 10.1.0.1:80, 10.1.0.2:80\nTCP 10.96.0.4:80 affinity 0: ")
	if len(b.left) != 0 {
		t.Errorf("left are %v", b.left)
	}
}

func TestKernelRefusesEndpoint(t *testing.T) {
	k := newFakeKernel()
	k.fails = func(op Op) error {
		if op.Kind == PutSlot && op.Slot.Slot == 1 {
			return errors.New("no memory")
		}
		return nil
	}
	b := newBalancer(t, k, Limits{})
	table := tableOf(route("a 10.96.0.1:80 10.1.0.1:80"), route("b 10.96.0.2:80 10.1.0.1:80 10.1.0.2:80"))
	apply(t, b, table)
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80")
	if len(k.Members) != 1 || len(k.Slots) != 1 {
		t.Errorf("of what was refused the maps keep %v, %v", k.Slots, k.Members)
	}
	k.fails = nil
	apply(t, b, table)
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80\nTCP 10.96.0.2:80 affinity 0: 10.1.0.1:80, 10.1.0.2:80")

	// A front that cannot be removed may lead to an endpoint that is gone: that is an error, and it is retried.
	k.fails = func(op Op) error { return map[bool]error{true: errors.New("not now")}[op.Kind == DeleteFront] }
	if err := b.Sync(t.Context(), tableOf(table.Routes[0]), []proxy.ServiceName{name("b")}); err == nil {
		t.Error("a front could not be removed, and no one heard")
	}
	k.fails = nil
	apply(t, b, tableOf(table.Routes[0]), name("b"))
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80")
}

// TestKernelCannot: a failed kernel is retried with a full comparison, not with each change.
func TestKernelCannot(t *testing.T) {
	k := newFakeKernel()
	k.openErr = errors.New("operation not permitted")
	b := newBalancer(t, k, Limits{})
	table := tableOf(route("a 10.96.0.1:80 10.1.0.1:80"))
	apply(t, b, table)
	apply(t, b, table, name("a"))
	if k.opens != 1 {
		t.Errorf("tried %d times", k.opens)
	}
	k.openErr = nil
	apply(t, b, table)
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80")
}

// TestEveryMomentIsWhole: whatever changes, a program that runs between two Ops finds an old or a new endpoint for each
// front.
func TestEveryMomentIsWhole(t *testing.T) {
	k := newFakeKernel()
	b := newBalancer(t, k, Limits{})
	random := func() *proxy.Table {
		var routes []proxy.Route
		for n := range 4 {
			if rand.IntN(4) == 0 {
				continue
			}
			text := fmt.Sprintf("s%d 10.96.0.%d:80", n, n+1)
			for e := range 6 {
				if one := rand.IntN(3); one > 0 {
					text += fmt.Sprintf(" 10.1.%d.%d:80%s", n, e, []string{"", "", "t"}[one])
				}
			}
			routes = append(routes, route(text))
		}
		return tableOf(append(routes, route("z 10.96.0.9:80 10.1.0.1:80"))...)
	}
	allowed := map[Key]map[Endpoint]bool{}
	note := func(table *proxy.Table) {
		for i := range table.Routes {
			r := &table.Routes[i]
			if allowed[keyOf(r)] == nil {
				allowed[keyOf(r)] = map[Endpoint]bool{}
			}
			for _, e := range r.Targets() {
				allowed[keyOf(r)][endpointOf(e.Addr)] = true
			}
		}
	}
	k.watch = func() {
		for key, f := range k.Fronts {
			for i := range f.Count {
				if e, ok := k.Slots[SlotKey{f.ID, i}]; !ok || !allowed[key][e] {
					t.Fatalf("slot %d of %s has %v", i, key, e.AddrPort())
				}
			}
		}
	}
	before := &proxy.Table{}
	for range 300 {
		table := random()
		clear(allowed)
		note(before)
		note(table)
		var changed []proxy.ServiceName
		if rand.IntN(4) > 0 {
			changed = []proxy.ServiceName{name("s0"), name("s1"), name("s2"), name("s3"), name("z")}
		}
		apply(t, b, table, changed...)
		fresh := newFakeKernel()
		apply(t, newBalancer(t, fresh, Limits{}), table)
		if k.String() != fresh.String() {
			t.Fatalf("got\n%s\nwant\n%s", k, fresh)
		}
		if len(k.Slots) != len(fresh.Slots) || len(k.Members) != len(fresh.Members) {
			t.Fatalf("%d slots and %d members, want %d and %d", len(k.Slots), len(k.Members), len(fresh.Slots), len(fresh.Members))
		}
		before = table
	}
}
