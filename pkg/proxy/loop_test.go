package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// rig runs a Loop with a fake back end.
type rig struct {
	t       *testing.T
	loop    *proxy.Loop
	inbox   *proxy.Inbox
	backend *proxytest.Backend
	events  *record.FakeRecorder
	health  *proxy.Health
	metrics *prometheus.Registry
	hints   chan struct{}
	host    atomic.Pointer[proxy.Host]
	ranges  chan []netip.Prefix
	synced  chan struct{}
}

// rangesOf reports the ranges of Tables when they change, before it serves them.
type rangesOf struct {
	*proxytest.Backend
	last   []netip.Prefix
	ranges chan<- []netip.Prefix
}

func (b *rangesOf) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	if !slices.Equal(b.last, want.ServiceRanges) {
		b.last = slices.Clone(want.ServiceRanges)
		b.ranges <- b.last
	}
	return b.Backend.Sync(ctx, want, changed)
}

func newRig(t *testing.T) *rig { return newRigOf(t, func(*proxy.LoopConfig) {}) }

func newRigOf(t *testing.T, change func(*proxy.LoopConfig)) *rig {
	r := &rig{t: t, backend: proxytest.NewBackend(), events: record.NewFakeRecorder(100), metrics: prometheus.NewRegistry(), hints: make(chan struct{}),
		ranges: make(chan []netip.Prefix, 10), synced: make(chan struct{})}
	node := proxy.NodeInfo{Name: "n1"}
	metrics := proxy.NewMetrics(r.metrics, node)
	r.health = proxy.NewHealth(clock.RealClock{}, node, metrics)
	r.host.Store(&proxy.Host{})
	r.inbox = proxy.NewInbox(r.health, metrics, clock.RealClock{})
	cfg := proxy.LoopConfig{Node: node, Inbox: r.inbox, Backend: &rangesOf{Backend: r.backend, ranges: r.ranges}, Health: r.health, Metrics: metrics, Resync: time.Hour, Hints: r.hints,
		Host: func() (proxy.Host, error) { return *r.host.Load(), nil }, Events: r.events, Clock: clock.RealClock{}}
	change(&cfg)
	r.loop = proxy.NewLoop(cfg)
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() { done <- r.loop.Run(ctx, r.synced) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

// watch feeds the loop from a client's objects.
func (r *rig) watch(client *clientsettest.Clientset, nodes cache.SharedIndexInformer) {
	r.t.Helper()
	w, err := proxy.NewWatch(r.inbox, client, nodes, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(func() { cancel(); group.Wait() })
	group.Go(func() { nodes.RunWithContext(ctx) })
	group.Go(func() { w.Run(ctx) })
	r.synced = make(chan struct{})
	group.Go(func() {
		select {
		case <-w.Synced():
			close(r.synced)
		case <-ctx.Done():
		}
	})
}

// until waits for the Sync after which ok holds.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	timeout := time.After(time.Minute)
	for !ok() {
		select {
		case <-r.backend.Synced():
		case <-timeout:
			r.t.Fatalf("%s: never; served is\n%s\ncalls %v", what, r.backend, r.backend.Calls())
		}
	}
}

func testService(name, ip string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "u"}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}}}
}

func testSlice(name string, addresses ...string) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name + "-1", Labels: map[string]string{discovery.LabelServiceName: name},
		Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}},
		AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Port: ptr.To[int32](8080)}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{a}, Hints: &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: "z" + a[len(a)-1:]}}}})
	}
	return s
}

func name(s string) proxy.ServiceName { return proxy.ServiceName{Namespace: "a", Name: s} }

const served = "a/web - ClusterIP TCP 10.96.0.1:80 - - 10.244.0.1:8080"

func TestNothingBeforeEverythingIsKnown(t *testing.T) {
	r := newRig(t)
	r.run()
	r.inbox.SetService(testService("web", "10.96.0.1"))
	r.inbox.SetSlice(testSlice("web", "10.244.0.1"))
	if calls := r.backend.Calls(); len(calls) > 0 {
		t.Fatalf("synced before the lists were complete: %v", calls)
	}
	close(r.synced)
	r.until("first sync", func() bool { return r.backend.String() == served })
	if calls := r.backend.Calls(); calls[0] != "everything" {
		t.Fatalf("the first sync was of %v", calls)
	}
}

func TestChangesAreBatched(t *testing.T) {
	r := newRig(t)
	r.run()
	close(r.synced)
	r.until("first sync", func() bool { return len(r.backend.Calls()) == 1 })
	for i := range 50 {
		r.inbox.SetService(testService("web", "10.96.0.1"))
		r.inbox.SetSlice(testSlice("web", "10.244.0."+string(rune('1'+i%9))))
	}
	r.inbox.SetSlice(testSlice("web", "10.244.0.1"))
	r.until("batch", func() bool { return r.backend.String() == served })
	if calls := r.backend.Calls(); len(calls) > 20 {
		t.Fatalf("100 changes made %d syncs", len(calls))
	} else if slices.Contains(calls[1:], "everything") {
		t.Fatalf("a change of one service made a sync of everything: %v", calls)
	}
	r.inbox.DeleteSlice("a", "web-1")
	r.until("no endpoint", func() bool { return strings.HasSuffix(r.backend.String(), "reject") })
	r.inbox.DeleteService(name("web"))
	r.until("gone", func() bool { return r.backend.String() == "" })
}

func TestFailedRoutesAreTriedAgain(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	r.backend.Break(name("web"), errors.New("port in use"))
	r.inbox.SetService(testService("web", "10.96.0.1"))
	r.inbox.SetService(testService("other", "10.96.0.2"))
	r.inbox.SetSlice(testSlice("web", "10.244.0.1"))
	r.run()
	r.until("the other service", func() bool { return strings.Contains(r.backend.String(), "a/other") })
	if event := <-r.events.Events; !strings.Contains(event, "FailedToServe") || !strings.Contains(event, "port in use") {
		t.Fatalf("event %q", event)
	}
	r.until("a retry", func() bool { return slices.Contains(r.backend.Calls(), "[a/web]") })
	var text strings.Builder
	if err := r.loop.WriteTable(&text); err != nil || !strings.Contains(text.String(), "failing: a/web") {
		t.Fatalf("the table does not name what fails: %v\n%s", err, &text)
	}
	r.backend.Break(name("web"), nil)
	r.until("recovery", func() bool { return strings.Contains(r.backend.String(), served) })
	if len(r.events.Events) > 0 {
		t.Fatalf("said twice: %s", <-r.events.Events)
	}
}

func TestFailedSyncIsTriedAgainWithEverything(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	r.run()
	r.until("first sync", func() bool { return len(r.backend.Calls()) == 1 })
	r.backend.Fail(errors.New("HNS is down"))
	r.inbox.SetService(testService("web", "10.96.0.1"))
	r.until("failure", func() bool { return len(r.backend.Calls()) == 2 })
	r.backend.Fail(nil)
	r.until("recovery", func() bool { return strings.Contains(r.backend.String(), "a/web") })
}

func TestHintComparesEverything(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	r.run()
	r.until("first sync", func() bool { return len(r.backend.Calls()) == 1 })
	r.hints <- struct{}{}
	r.until("sync after a hint", func() bool { return len(r.backend.Calls()) == 2 && r.backend.Calls()[1] == "everything" })
}

func TestMalformedIsReportedOnce(t *testing.T) {
	r := newRig(t)
	close(r.synced)
	r.run()
	s := testService("web", "10.96.0.1")
	s.Spec.ExternalIPs = []string{"127.0.0.1"}
	r.inbox.SetService(s)
	r.inbox.SetSlice(testSlice("web", "10.244.0.1"))
	r.until("the rest", func() bool { return r.backend.String() == served })
	if event := <-r.events.Events; !strings.Contains(event, "InvalidService") || !strings.Contains(event, "externalIPs[0]") {
		t.Fatalf("event %q", event)
	}
	r.inbox.SetSlice(testSlice("web", "10.244.0.2"))
	r.until("a change", func() bool { return strings.Contains(r.backend.String(), "10.244.0.2") })
	if len(r.events.Events) > 0 {
		t.Fatalf("said twice: %s", <-r.events.Events)
	}
}

// TestWarn: a back end's warning becomes an Event on the Service, even before the first Sync, but not if the Service
// does not exist.
func TestWarn(t *testing.T) {
	r := newRig(t)
	r.inbox.SetService(testService("web", "10.96.0.1"))
	r.inbox.Warn(proxy.ServiceName{Namespace: "a", Name: "web"}, "Early", "first words")
	r.inbox.Warn(proxy.ServiceName{Namespace: "a", Name: "web"}, "Early", "last words")
	r.inbox.Warn(proxy.ServiceName{Namespace: "a", Name: "gone"}, "Never", "words")
	r.run()
	close(r.synced)
	if event := <-r.events.Events; event != "Warning Early last words" {
		t.Errorf("event %q", event)
	}
	r.inbox.Warn(proxy.ServiceName{Namespace: "a", Name: "web"}, "Late", "more words")
	if event := <-r.events.Events; event != "Warning Late more words" {
		t.Errorf("event %q", event)
	}
	if calls := r.backend.Calls(); !slices.Equal(calls, []string{"everything"}) {
		t.Errorf("a warning synced: %v", calls)
	}
}

// TestWatch runs the informers with a fake API server.
func TestWatch(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	other := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.2"}, {Type: v1.NodeHostName, Address: "n2"}}}}
	own := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1.LabelTopologyZone: "z2"}}}
	client := clientsettest.NewClientset(testService("web", "10.96.0.1"), testSlice("web", "10.244.0.1", "10.244.0.2"), own, other)
	watched := clientsettest.OnceWatched(t, client, "services", "endpointslices")
	nodes, err := proxy.NodeInformer(client, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.watch(client, nodes)
	r.run()
	r.until("own zone", func() bool { return r.backend.String() == "a/web - ClusterIP TCP 10.96.0.1:80 - - 10.244.0.2:8080" })
	own.Labels[v1.LabelTopologyZone] = "z1"
	if _, err := client.Nodes().Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("new zone", func() bool { return r.backend.String() == served })
	watched()
	if err := client.EndpointSlices("a").Delete(ctx, "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("no endpoint", func() bool { return strings.HasSuffix(r.backend.String(), "reject") })
	if err := client.Services("a").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("gone", func() bool { return r.backend.String() == "" })
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]uint64{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			seen[f.GetName()] = h.GetSampleCount()
		}
	}
	for _, want := range []string{"kubeproxy_sync_proxy_rules_duration_seconds", "kubeproxy_sync_full_proxy_rules_duration_seconds",
		"kubeproxy_sync_partial_proxy_rules_duration_seconds"} {
		if seen[want] == 0 {
			t.Errorf("metric %s has no sample", want)
		}
	}
}

func TestHealth(t *testing.T) {
	now := time.Now()
	c := &setClock{now: now}
	metrics := proxy.NewMetrics(prometheus.NewRegistry(), proxy.NodeInfo{IPv4: true})
	h := proxy.NewHealth(c, proxy.NodeInfo{IPv4: true}, metrics)
	ask := func(path string) (int, map[string]any) {
		w := httptest.NewRecorder()
		h.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		out := map[string]any{}
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		return w.Code, out
	}
	node := &v1.Node{}
	tainted := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}}}
	for _, step := range []struct {
		what           string
		do             func()
		healthz, livez int
	}{
		{"at start", func() {}, 503, 200},
		{"own node known", func() { h.SetNode(node) }, 200, 200},
		{"synced", func() { h.Updated() }, 200, 200},
		{"change waits", func() { h.Queued(); c.now = c.now.Add(59 * time.Second) }, 200, 200},
		{"change waits too long", func() { c.now = c.now.Add(2 * time.Second) }, 503, 503},
		{"synced again", func() { h.Updated() }, 200, 200},
		{"node is to go", func() { h.SetNode(tainted) }, 503, 200},
		{"node is gone", func() { h.SetNode(nil) }, 503, 200},
	} {
		step.do()
		healthz, body := ask("/healthz")
		livez, _ := ask("/livez")
		if healthz != step.healthz || livez != step.livez {
			t.Errorf("%s: healthz %d, livez %d, want %d, %d", step.what, healthz, livez, step.healthz, step.livez)
		}
		if _, ok := body["lastUpdated"]; !ok || body["currentTime"] == nil || body["nodeEligible"] == nil {
			t.Errorf("%s: body %v", step.what, body)
		}
	}
}

type setClock struct{ now time.Time }

func (c *setClock) Now() time.Time                  { return c.now }
func (c *setClock) Since(t time.Time) time.Duration { return c.now.Sub(t) }

// podsOf reports the pod ranges of Tables that are applied as a whole.
type podsOf struct {
	*proxytest.Backend
	pods chan []netip.Prefix
}

func (b *podsOf) Sync(ctx context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	if changed == nil {
		b.pods <- slices.Clone(want.PodRanges)
	}
	return b.Backend.Sync(ctx, want, changed)
}

// TestOwnPodRanges: a back end learns this node's pod ranges as soon as the Node has them, of no other node, and none
// that is too wide to be a node's.
func TestOwnPodRanges(t *testing.T) {
	pods := make(chan []netip.Prefix, 10)
	r := newRigOf(t, func(cfg *proxy.LoopConfig) { cfg.Backend = &podsOf{Backend: proxytest.NewBackend(), pods: pods} })
	close(r.synced)
	r.run()
	node := func(name string, ranges ...string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: ranges}}
	}
	for _, step := range []struct {
		node *v1.Node
		want string
	}{
		{nil, "[]"},
		{node("n1", "fd44::/64", "10.244.1.7/24"), "[10.244.1.0/24 fd44::/64]"},
		{node("n1", "10.0.0.0/8", "fd44::/64"), "[fd44::/64]"},
		{node("n1"), "[]"},
	} {
		if step.node != nil {
			r.inbox.SetNode(node("n2", "10.244.2.0/24"))
			r.inbox.SetNode(step.node)
		}
		if got := fmt.Sprint(<-pods); got != step.want {
			t.Errorf("pod ranges %s, want %s", got, step.want)
		}
	}
}
