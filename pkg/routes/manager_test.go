package routes

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/kubeclient/kubeclienttest"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	testclock "k8s.io/utils/clock/testing"
)

func TestApply(t *testing.T) {
	ctx := t.Context()
	f := NewFake(pfx("10.1.0.11/24"))
	state, _ := Plan(HostGateway, "Lin01", seeds(), Options{})
	if _, err := Apply(ctx, f, state); err != nil {
		t.Fatal(err)
	}
	const want = "192.168.1.0/24 via 10.1.0.12 src 10.1.0.11 proto 157\n192.168.2.0/24 via 10.1.0.13 src 10.1.0.11 proto 157\n"
	stripped := strings.NewReplacer(" towards 10.1.0.12", "", " towards 10.1.0.13", "")
	if got := stripped.Replace(f.String()); got != want {
		t.Errorf("got\n%s", got)
	}
	writes := f.Writes()
	if d, err := Apply(ctx, f, state); err != nil || !d.Empty() || f.Writes() != writes {
		t.Errorf("the same again changed %v, %v", d, err)
	}
	// Another address: replaced, not removed and added.
	nodes := seeds()
	nodes[1].Status.Addresses[0].Address = "10.1.0.99"
	state, _ = Plan(HostGateway, "Lin01", nodes, Options{})
	if d, err := Apply(ctx, f, state); err != nil || len(d.Replace) != 1 || len(d.Add)+len(d.Remove) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := Cleanup(ctx, f); err != nil || f.String() != "" {
		t.Errorf("left after cleanup: %s, %v", f, err)
	}
}

func TestApplyErrors(t *testing.T) {
	ctx := t.Context()
	f := NewFake(pfx("10.1.0.11/24"))
	f.Plant(Route{Dst: pfx("192.168.1.0/24"), Via: netip.MustParseAddr("10.1.0.77")}) // another program's
	f.Plant(Route{Dst: pfx("192.168.3.0/24"), Via: netip.MustParseAddr("10.1.0.14")}) // equal to what we would write
	nodes := append(seeds(), node("Lin03", "10.1.0.14", "192.168.3.0/24"), node("far", "10.2.0.1", "192.168.4.0/24"))
	state, problems := Plan(HostGateway, "Lin01", nodes, Options{})
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	_, err := Apply(ctx, f, state)
	if err == nil || !strings.Contains(err.Error(), "192.168.1.0/24 via 10.1.0.77 is there and was not written by this program") ||
		!strings.Contains(err.Error(), "192.168.4.0/24 via 10.2.0.1 src 10.1.0.11: network is unreachable") || strings.Contains(err.Error(), "192.168.3.0") {
		t.Errorf("error: %v", err)
	}
	if got := f.String(); !strings.Contains(got, "192.168.2.0/24 via 10.1.0.13") || strings.Count(got, "proto 157") != 1 || strings.Count(got, "proto boot") != 2 {
		t.Errorf("table:\n%s", got)
	}
	if err := Cleanup(ctx, f); err != nil || strings.Count(f.String(), "proto boot") != 2 || strings.Contains(f.String(), "157") {
		t.Errorf("cleanup touched others: %s, %v", f, err)
	}
}

// rig runs a Manager with a fake API server and a fake host.
type rig struct {
	t        *testing.T
	table    *Fake
	client   *fake.Clientset
	watched  func()
	clock    *testclock.FakeClock
	mu       sync.Mutex
	problems []Problem
}

func start(t *testing.T, mode Mode, table *Fake, nodes ...*v1.Node) *rig {
	t.Helper()
	r := &rig{t: t, table: table, client: kubeclienttest.NewClientset(), clock: testclock.NewFakeClock(time.Unix(0, 0))}
	for _, n := range nodes {
		if err := r.client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	r.watched = kubeclienttest.OnceWatched(t, r.client, "nodes")
	factory := informers.NewSharedInformerFactory(r.client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	m := New(Config{Mode: mode, Node: "Lin01"}, Parts{Table: table, Clock: r.clock, Problem: func(p Problem) {
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
	r := start(t, HostGateway, NewFake(pfx("10.1.0.11/24")), seeds()...)
	r.eventually("first routes", r.has("192.168.2.0/24 via 10.1.0.13"))

	r.table.Lose(pfx("192.168.2.0/24"), true)
	r.eventually("repair by event", r.has("192.168.2.0/24"))

	r.eventually("waiting", r.clock.HasWaiters)
	r.table.Lose(pfx("192.168.1.0/24"), false)
	r.eventually("repair by comparison", func() bool {
		if r.clock.HasWaiters() {
			r.clock.Step(defaultCompare)
		}
		return r.has("192.168.1.0/24")()
	})

	r.watched()
	if err := r.client.CoreV1().Nodes().Delete(ctx, "Win02", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("deleted node", r.hasNot("192.168.2.0/24"))
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node("Win02", "10.1.0.44", "192.168.2.0/24"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("node is back", r.has("192.168.2.0/24 via 10.1.0.44"))
}

func TestManagerRetriesAndReports(t *testing.T) {
	table := NewFake(pfx("10.1.0.11/24"))
	table.Break(errors.New("netlink is out of order"))
	r := start(t, HostGateway, table, append(seeds(), node("Win03", "10.1.0.14"))...)
	r.eventually("retry timer", r.clock.HasWaiters)
	table.Break(nil)
	r.eventually("retried", func() bool {
		if r.clock.HasWaiters() {
			r.clock.Step(firstRetry)
		}
		return r.has("192.168.2.0/24")()
	})
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.problems)
	}
	r.eventually("problem reported", func() bool {
		r.clock.Step(defaultCompare)
		return count() > 0
	})
	writes := table.Writes()
	for range 5 {
		r.eventually("waiting", r.clock.HasWaiters)
		r.clock.Step(defaultCompare)
	}
	if n := count(); n != 1 || r.problems[0].Node != "Win03" || r.problems[0].Reason != NoPodCIDR {
		t.Errorf("%d problems: %v", n, r.problems)
	}
	if table.Writes() != writes {
		t.Error("comparisons wrote to an unchanged table")
	}
}

// TestManagerUpstream: a proxy that leaves routes to the routers removes those that it wrote before.
func TestManagerUpstream(t *testing.T) {
	table := NewFake(pfx("10.1.0.11/24"))
	state, _ := Plan(HostGateway, "Lin01", seeds(), Options{})
	if _, err := Apply(t.Context(), table, state); err != nil {
		t.Fatal(err)
	}
	r := start(t, Upstream, table, seeds()...)
	r.eventually("nothing left", func() bool { return table.String() == "" })
}

// TestManagerTellsHere: a problem of this host is reported once it has lasted, again after a failure, and withdrawn
// immediately when it is gone.
func TestManagerTellsHere(t *testing.T) {
	ctx := t.Context()
	table := NewFake(pfx("10.1.0.11/24"))
	table.Plant(Route{Dst: pfx("192.168.1.0/24"), Via: netip.MustParseAddr("10.1.0.77")})
	nodes := []*v1.Node{younger(seeds()[0], time.Hour), younger(seeds()[1], 0), younger(node("Win00", "10.1.0.14", "192.168.0.0/24"), 0)}
	var told [][]Problem
	fail := errors.New("the disk is full")
	m := New(Config{Mode: HostGateway, Node: "Lin01"}, Parts{Table: table, Clock: testclock.NewFakeClock(time.Unix(0, 0)), Here: func(list []Problem) error {
		told = append(told, list)
		return fail
	}})
	pass := func(compared bool) {
		t.Helper()
		problems, _, known := m.pass(ctx, nodes)
		if !known {
			t.Fatal("nothing is known of the routes")
		}
		m.report(problems, compared)
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
	want := []Problem{
		{Node: "Lin01", Reason: PodCIDRTaken, Here: true, Message: "the pod CIDR overlaps with 192.168.0.0/24 of node Win00, which is older: other nodes send traffic for pods of Lin01 there; delete this Node, so that it registers again with another range"},
		{Node: "Win01", Reason: ForeignRoute, Here: true, To: pfx("192.168.1.0/24"), Message: "cannot add route 192.168.1.0/24 via 10.1.0.12 src 10.1.0.11 to node Win01: a route 192.168.1.0/24 via 10.1.0.77 is there and was not written by this program; remove it"},
	}
	if len(told) != 2 || !slices.Equal(told[0], want) || !slices.Equal(told[1], want) {
		t.Errorf("told %d times:\n%+v\nwant twice:\n%+v", len(told), told, want)
	}
	table.Break(errors.New("netlink is out of order"))
	if _, _, known := m.pass(ctx, nodes); known {
		t.Error("something is known of routes that cannot be listed")
	}
	table.Break(nil)
	table.Uproot()
	pass(false)
	if len(told) != 3 || !slices.Equal(told[2], want[:1]) {
		t.Errorf("after the route has gone: %+v", told[len(told)-1])
	}
}
