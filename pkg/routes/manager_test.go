package routes_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/routes/routestest"
	"github.com/winkube/winkube/pkg/vxlan"
)

func TestApply(t *testing.T) {
	ctx := t.Context()
	f := routestest.NewTable(pfx("10.1.0.11/24"))
	state, _ := routes.Plan(routes.HostGateway, "Lin01", routes.Seeds(), routes.Options{})
	if _, err := routes.Apply(ctx, f, state); err != nil {
		t.Fatal(err)
	}
	const want = "192.168.1.0/24 via 10.1.0.12 src 10.1.0.11 proto 157\n192.168.2.0/24 via 10.1.0.13 src 10.1.0.11 proto 157\n"
	stripped := strings.NewReplacer(" towards 10.1.0.12", "", " towards 10.1.0.13", "")
	if got := stripped.Replace(f.String()); got != want {
		t.Errorf("got\n%s", got)
	}
	writes := f.Writes()
	if d, err := routes.Apply(ctx, f, state); err != nil || !d.Empty() || f.Writes() != writes {
		t.Errorf("the same again changed %v, %v", d, err)
	}
	// Another address: replaced, not removed and added.
	nodes := routes.Seeds()
	nodes[1].Status.Addresses[0].Address = "10.1.0.99"
	state, _ = routes.Plan(routes.HostGateway, "Lin01", nodes, routes.Options{})
	if d, err := routes.Apply(ctx, f, state); err != nil || len(d.Replace) != 1 || len(d.Add)+len(d.Remove) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := routes.Cleanup(ctx, f); err != nil || f.String() != "" {
		t.Errorf("left after cleanup: %s, %v", f, err)
	}
}

func TestApplyErrors(t *testing.T) {
	ctx := t.Context()
	f := routestest.NewTable(pfx("10.1.0.11/24"))
	f.Plant(routes.Route{Dst: pfx("192.168.1.0/24"), Via: netip.MustParseAddr("10.1.0.77")}) // another program's
	f.Plant(routes.Route{Dst: pfx("192.168.3.0/24"), Via: netip.MustParseAddr("10.1.0.14")}) // equal to what we would write
	nodes := append(routes.Seeds(), routes.NewNode("Lin03", "10.1.0.14", "192.168.3.0/24"), routes.NewNode("far", "10.2.0.1", "192.168.4.0/24"))
	state, problems := routes.Plan(routes.HostGateway, "Lin01", nodes, routes.Options{})
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	_, err := routes.Apply(ctx, f, state)
	if err == nil || !strings.Contains(err.Error(), "192.168.1.0/24 via 10.1.0.77 is there and was not written by this program") ||
		!strings.Contains(err.Error(), "192.168.4.0/24 via 10.2.0.1 src 10.1.0.11: network is unreachable") || strings.Contains(err.Error(), "192.168.3.0") {
		t.Errorf("error: %v", err)
	}
	if got := f.String(); !strings.Contains(got, "192.168.2.0/24 via 10.1.0.13") || strings.Count(got, "proto 157") != 1 || strings.Count(got, "proto boot") != 2 {
		t.Errorf("table:\n%s", got)
	}
	if err := routes.Cleanup(ctx, f); err != nil || strings.Count(f.String(), "proto boot") != 2 || strings.Contains(f.String(), "157") {
		t.Errorf("cleanup touched others: %s, %v", f, err)
	}
}

// rig runs a Manager with a fake API server and a fake host.
type rig struct {
	t        *testing.T
	table    *routestest.Table
	client   *clientsettest.Clientset
	watched  func()
	clock    *testclock.FakeClock
	mu       sync.Mutex
	problems []routes.Problem
}

func start(t *testing.T, mode routes.Mode, table *routestest.Table, nodes ...*v1.Node) *rig {
	t.Helper()
	r := &rig{t: t, table: table, client: clientsettest.NewClientset(), clock: testclock.NewFakeClock(time.Unix(0, 0))}
	for _, n := range nodes {
		if err := r.client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	r.watched = clientsettest.OnceWatched(t, r.client, "nodes")
	factory := informers.NewSharedInformerFactory(r.client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	m := routes.New(routes.Config{Mode: mode, Node: "Lin01"}, routes.Parts{Table: table, Clock: r.clock, Problem: func(p routes.Problem) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.problems = append(r.problems, p)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { done <- m.Run(ctx, informer) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		factory.Shutdown()
	})
	return r
}

// eventually waits until ok.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("%s: not within a minute; table:\n%s", what, r.table)
		}
	}
}

func (r *rig) has(s string) func() bool {
	return func() bool { return strings.Contains(r.table.String(), s) }
}

func (r *rig) hasNot(s string) func() bool {
	return func() bool { return !strings.Contains(r.table.String(), s) }
}

func TestManager(t *testing.T) {
	ctx := t.Context()
	r := start(t, routes.HostGateway, routestest.NewTable(pfx("10.1.0.11/24")), routes.Seeds()...)
	r.eventually("first routes", r.has("192.168.2.0/24 via 10.1.0.13"))

	r.table.Lose(pfx("192.168.2.0/24"), true)
	r.eventually("repair by event", r.has("192.168.2.0/24"))

	r.eventually("waiting", r.clock.HasWaiters)
	r.table.Lose(pfx("192.168.1.0/24"), false)
	r.eventually("repair by comparison", func() bool {
		if r.clock.HasWaiters() {
			r.clock.Step(routes.DefaultCompare)
		}
		return r.has("192.168.1.0/24")()
	})

	r.watched()
	if err := r.client.Nodes().Delete(ctx, "Win02", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("deleted node", r.hasNot("192.168.2.0/24"))
	if _, err := r.client.Nodes().Create(ctx, routes.NewNode("Win02", "10.1.0.44", "192.168.2.0/24"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("node is back", r.has("192.168.2.0/24 via 10.1.0.44"))
}

func TestManagerRetriesAndReports(t *testing.T) {
	table := routestest.NewTable(pfx("10.1.0.11/24"))
	table.Break(errors.New("netlink is out of order"))
	r := start(t, routes.HostGateway, table, append(routes.Seeds(), routes.NewNode("Win03", "10.1.0.14"))...)
	r.eventually("retry timer", r.clock.HasWaiters)
	table.Break(nil)
	r.eventually("retried", func() bool {
		if r.clock.HasWaiters() {
			r.clock.Step(routes.FirstRetry)
		}
		return r.has("192.168.2.0/24")()
	})
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.problems)
	}
	r.eventually("problem reported", func() bool {
		r.clock.Step(routes.DefaultCompare)
		return count() > 0
	})
	writes := table.Writes()
	for range 5 {
		r.eventually("waiting", r.clock.HasWaiters)
		r.clock.Step(routes.DefaultCompare)
	}
	if n := count(); n != 1 || r.problems[0].Node != "Win03" || r.problems[0].Reason != routes.NoPodCIDR {
		t.Errorf("%d problems: %v", n, r.problems)
	}
	if table.Writes() != writes {
		t.Error("comparisons wrote to an unchanged table")
	}
}

// TestManagerUpstream: a proxy that leaves routes to the routers removes those that it wrote before.
func TestManagerUpstream(t *testing.T) {
	table := routestest.NewTable(pfx("10.1.0.11/24"))
	state, _ := routes.Plan(routes.HostGateway, "Lin01", routes.Seeds(), routes.Options{})
	if _, err := routes.Apply(t.Context(), table, state); err != nil {
		t.Fatal(err)
	}
	r := start(t, routes.Upstream, table, routes.Seeds()...)
	r.eventually("nothing left", func() bool { return table.String() == "" })
}

// TestManagerTellsHere: a problem of this host is reported once it has lasted, again after a failure, and withdrawn
// immediately when it is gone.
func TestManagerTellsHere(t *testing.T) {
	ctx := t.Context()
	table := routestest.NewTable(pfx("10.1.0.11/24"))
	table.Plant(routes.Route{Dst: pfx("192.168.1.0/24"), Via: netip.MustParseAddr("10.1.0.77")})
	nodes := []*v1.Node{routes.Younger(routes.Seeds()[0], time.Hour), routes.Younger(routes.Seeds()[1], 0), routes.Younger(routes.NewNode("Win00", "10.1.0.14", "192.168.0.0/24"), 0)}
	var told [][]routes.Problem
	fail := errors.New("the disk is full")
	m := routes.New(routes.Config{Mode: routes.HostGateway, Node: "Lin01"}, routes.Parts{Table: table, Clock: testclock.NewFakeClock(time.Unix(0, 0)), Here: func(list []routes.Problem) error {
		told = append(told, list)
		return fail
	}})
	pass := func(compared bool) {
		t.Helper()
		problems, _, known := m.Pass(ctx, nodes)
		if !known {
			t.Fatal("nothing is known of the routes")
		}
		m.Report(problems, compared)
	}
	pass(false)
	if len(told) != 0 {
		t.Errorf("told before it has lasted: %v", told)
	}
	pass(true)
	fail = nil
	pass(false)
	pass(true)
	pass(true)
	want := []routes.Problem{
		{Node: "Lin01", Reason: routes.PodCIDRTaken, Here: true, Message: "the pod CIDR overlaps with 192.168.0.0/24 of node Win00, which is older: other nodes send traffic for pods of Lin01 there; delete this Node, so that it registers again with another range"},
		{Node: "Win01", Reason: routes.ForeignRoute, Here: true, To: pfx("192.168.1.0/24"), Message: "cannot add route 192.168.1.0/24 via 10.1.0.12 src 10.1.0.11 to node Win01: a route 192.168.1.0/24 via 10.1.0.77 is there and was not written by this program; remove it"},
	}
	if len(told) != 2 || !slices.Equal(told[0], want) || !slices.Equal(told[1], want) {
		t.Errorf("told %d times:\n%+v\nwant twice:\n%+v", len(told), told, want)
	}
	table.Break(errors.New("netlink is out of order"))
	if _, _, known := m.Pass(ctx, nodes); known {
		t.Error("something is known of routes that cannot be listed")
	}
	table.Break(nil)
	table.Uproot()
	pass(false)
	if len(told) != 3 || !slices.Equal(told[2], want[:1]) {
		t.Errorf("after the route has gone: %+v", told[len(told)-1])
	}
}

// TestFlappingLiar: a Node that constantly changes its lies takes nothing from the others, is reported once per kind of
// lie in five minutes, and does not delay the comparison that reports others' problems.
func TestFlappingLiar(t *testing.T) {
	ctx := t.Context()
	nodes := routes.Cluster(routes.NewNode("liar", "10.1.0.19", "10.244.7.0/24"), routes.NewNode("mute", "10.1.0.20"))
	nodes[0].Name = "Lin01" // as in start
	r := start(t, routes.HostGateway, routestest.NewTable(pfx("10.1.0.11/24")), nodes...)
	r.eventually("honest", r.has("10.244.7.0/24 via 10.1.0.19"))
	lies := []string{"10.1.0.12", "10.1.0.11", "10.244.1.9", "10.1.0.13"}
	for i := range 4 * 40 { // 80 s of lies, one each half second
		lie := nodes[3].DeepCopy()
		lie.Status.Addresses[0].Address = lies[i%len(lies)]
		before := r.table.Lists()
		if _, err := r.client.CoreV1().Nodes().UpdateStatus(ctx, lie, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.eventually("the lie was seen", func() bool { return r.table.Lists() > before })
		r.eventually("waiting", r.clock.HasWaiters)
		r.clock.Step(500 * time.Millisecond)
		for _, want := range []string{"10.244.1.0/24 via 10.1.0.12", "10.244.2.0/24 via 10.1.0.13"} {
			if !r.has(want)() {
				t.Fatalf("lie %d: %q has gone:\n%s", i, want, r.table)
			}
		}
		if i > 0 && r.has("10.244.7.0/24")() {
			t.Fatalf("lie %d is believed:\n%s", i, r.table)
		}
	}
	said := func(node string) (n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.problems {
			if p.Node == node {
				n++
			} else if p.Node != "liar" && p.Node != "mute" {
				t.Errorf("said of another: %s", p)
			}
		}
		return n
	}
	if n := said("liar"); n != 1 {
		t.Errorf("said %d times of the liar: %v", n, r.problems)
	}
	if n := said("mute"); n != 1 {
		t.Errorf("the lies put off what is to be said of another: %d times", n)
	}
	if _, err := r.client.CoreV1().Nodes().UpdateStatus(ctx, nodes[3], metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("honest again", r.has("10.244.7.0/24 via 10.1.0.19"))
}

// TestManagerOverlay: the kubelet may create the device at any time; the entries follow, also after it was recreated.
func TestManagerOverlay(t *testing.T) {
	table := routestest.NewTable(pfx("10.1.0.11/24"))
	nodes := routes.Announce(routes.Seeds()...)
	late := nodes[2].Annotations
	nodes[2].Annotations = nil
	r := start(t, routes.Overlay, table, nodes...)
	r.eventually("retry timer", r.clock.HasWaiters)
	table.Tunnel(vxlan.DeviceName(true))
	const route, peer = "192.168.1.0/24 via 192.168.1.0 dev winkube.4096 onlink proto 157", "192.168.1.0 lladdr 0e:2a:c0:a8:01:00 dst 10.1.0.12 dev winkube.4096"
	r.eventually("route into the tunnel", r.has(route))
	r.eventually("peer", r.has(peer))
	announced := routes.NewNode("Win02", "10.1.0.13", "192.168.2.0/24")
	announced.Annotations = late
	if _, err := r.client.Nodes().Update(t.Context(), announced, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("node that announces itself late", r.has("192.168.2.0/24 via 192.168.2.0 dev winkube.4096"))
	table.Tunnel(vxlan.DeviceName(true))
	r.eventually("device was recreated", func() bool { return r.has(route)() && r.has(peer)() })
}

func TestConflicts(t *testing.T) {
	f := routestest.NewTable(pfx("10.1.0.11/24"))
	f.Plant(routes.Route{Dst: pfx("192.168.1.0/24"), Via: netip.MustParseAddr("10.1.0.77")})
	state, _ := routes.Plan(routes.HostGateway, "Lin01", append(routes.Seeds(), routes.NewNode("far", "10.2.0.1", "192.168.4.0/24")), routes.Options{})
	_, err := routes.Apply(t.Context(), f, state)
	got := routes.Conflicts(fmt.Errorf("wrapped: %w", err))
	if len(got) != 0 { // Apply's own error is not wrapped
		t.Errorf("%v", got)
	}
	got = routes.Conflicts(err)
	if len(got) != 1 || got[0].Node != "Win01" || got[0].Reason != routes.ForeignRoute || !strings.Contains(got[0].Message, "remove it") {
		t.Errorf("%v", got)
	}
	if routes.Conflicts(nil) != nil || routes.Conflicts(errors.New("x")) != nil {
		t.Error("conflicts out of nothing")
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
