package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/wake"
)

// rig is a Manager whose parts a test can change while it runs.
type rig struct {
	*testing.T
	api     *api
	clock   *fakeClock
	looked  chan struct{} // sent at each comparison
	events  *record.FakeRecorder
	manager *Manager
	changed wake.Signal

	mu     sync.Mutex
	facts  host.Facts
	engine error
	addrs  []netip.Addr
	// pressure and shutdown of the node.
	pressure []v1.NodeConditionType
	shutdown bool
	inUse    []v1.UniqueVolumeName
	reported *v1.Node
}

// fakeClock reports when someone starts to wait.
type fakeClock struct {
	*clocktesting.FakeClock
	waiting chan struct{}
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	timer := c.FakeClock.After(d)
	c.waiting <- struct{}{}
	return timer
}

func newRig(t *testing.T, config Config) *rig {
	api, client := newAPI(t, "n1")
	r := &rig{T: t, api: api, changed: wake.New(), looked: make(chan struct{}, 1000),
		clock: &fakeClock{clocktesting.NewFakeClock(start), make(chan struct{}, 1000)}, events: record.NewFakeRecorder(100), facts: linuxFacts(),
		addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	config.Name = "n1"
	manager, err := New(config, Parts{Client: client, Watch: api, Host: r, Engine: r, Network: r, Pressure: r, Shutdown: r, Volumes: r, Changed: r.changed, Events: r.events, Clock: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	r.manager = manager
	return r
}

func (r *rig) Facts() (host.Facts, error) { r.mu.Lock(); defer r.mu.Unlock(); return r.facts, nil }

func (r *rig) NodeDisk(context.Context) (host.Disk, error) {
	return host.Disk{Capacity: 100 << 30}, nil
}

func (r *rig) Addresses() ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addrs, nil
}

func (r *rig) Runtime(context.Context) (Runtime, error) {
	r.looked <- struct{}{}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Runtime{Version: "20.10.24"}, r.engine
}

func (r *rig) Images(context.Context) ([]v1.ContainerImage, error) {
	return []v1.ContainerImage{{Names: []string{"pause:1"}, SizeBytes: 1}}, nil
}

func (r *rig) Ready() error                   { return nil }
func (r *rig) Unavailable() *v1.NodeCondition { return nil }
func (r *rig) Conditions() []v1.NodeConditionType {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pressure
}
func (r *rig) Begun() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.shutdown }

// InUse implements Volumes.
func (r *rig) InUse() []v1.UniqueVolumeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]v1.UniqueVolumeName{}, r.inUse...)
}

// Reported implements Volumes.
func (r *rig) Reported(node *v1.Node) { r.set(func() { r.reported = node }) }

// start runs the manager until the test ends.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.manager.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run: %v", err)
		}
	})
}

func (r *rig) registered() {
	r.Helper()
	r.soon(r.manager.Registered(), "not registered")
}

// expect waits for the next successful request of a kind, ignoring others.
func (r *rig) expect(what string) {
	r.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case got := <-r.api.told:
			if strings.HasPrefix(got, what) {
				return
			}
		case <-timeout:
			r.Fatalf("no %s; requests:\n%s", what, r.api.requests())
		}
	}
}

// quiet triggers one more comparison and fails if it sends a status.
func (r *rig) quiet() {
	r.Helper()
	before := len(r.patches())
	for len(r.looked) > 0 {
		<-r.looked
	}
	for range 3 { // the first may be the end of an earlier comparison; when the third begins, the second is complete
		r.changed.Send()
		r.soon(r.looked, "the manager does not look")
	}
	if after := r.patches(); len(after) != before {
		r.Fatalf("sent although nothing changed: %s", after[before:])
	}
}

// soon waits for c, with a limit.
func (r *rig) soon(c <-chan struct{}, otherwise string) {
	r.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		r.Fatalf("%s; requests:\n%s", otherwise, r.api.requests())
	}
}

func (r *rig) patches() []string {
	r.api.mu.Lock()
	defer r.api.mu.Unlock()
	return append([]string(nil), r.api.patches...)
}

func (r *rig) set(change func()) { r.mu.Lock(); defer r.mu.Unlock(); change() }

// wait advances the clock once someone waits for it.
func (r *rig) wait(d time.Duration) {
	r.Helper()
	r.soon(r.clock.waiting, "no one waits for time to pass")
	r.clock.Step(d)
}

func TestRegistersReportsAndRests(t *testing.T) {
	r := newRig(t, Config{Labels: map[string]string{"pool": "a"}, Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}})
	r.start()
	r.registered()
	r.expect("POST /api/v1/nodes")
	r.expect("POST /apis/coordination")
	r.quiet()
	n := r.api.Node()
	for name, want := range map[string]string{"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"beta.kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "n1", "pool": "a"} {
		if n.Labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, n.Labels[name], want)
		}
	}
	if len(n.Spec.Taints) != 1 || n.Annotations[attachAnnotation] != "true" || n.Status.NodeInfo.ContainerRuntimeVersion != "docker://20.10.24" {
		t.Errorf("registered as %+v", n)
	}
	r.api.mu.Lock()
	l := r.api.lease
	r.api.mu.Unlock()
	if *l.Spec.HolderIdentity != "n1" || *l.Spec.LeaseDurationSeconds != 40 || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != n.UID {
		t.Errorf("lease is %+v", l)
	}

	// A heartbeat follows after the report frequency, plus or minus half of it, and not earlier.
	r.clock.Step(2 * time.Minute)
	r.quiet()
	r.clock.Step(6 * time.Minute)
	r.expect("PATCH")
	ready := find(r.api.Node().Status.Conditions, v1.NodeReady)
	if !ready.LastTransitionTime.Time.Equal(start) || !ready.LastHeartbeatTime.After(start) {
		t.Errorf("after a heartbeat: %+v", ready)
	}
	if p := r.patches()[0]; strings.Contains(p, "images") || strings.Contains(p, "capacity") {
		t.Errorf("a heartbeat carries more than times: %s", p)
	}
}

func TestEngineDeathIsSentAtOnce(t *testing.T) {
	r := newRig(t, Config{})
	r.start()
	r.registered()
	r.quiet()
	r.set(func() { r.engine = errors.New("connection refused") })
	r.changed.Send()
	r.expect("PATCH")
	ready := find(r.api.Node().Status.Conditions, v1.NodeReady)
	if ready.Status != v1.ConditionFalse || !strings.Contains(ready.Message, "container runtime is down: connection refused") {
		t.Errorf("engine dead: %+v", ready)
	}
	r.set(func() { r.engine = nil })
	r.changed.Send()
	r.expect("PATCH")
	r.quiet()
	var events []string
	for len(r.events.Events) > 0 {
		events = append(events, <-r.events.Events)
	}
	got := strings.Join(events, "\n")
	for _, want := range []string{"Normal Starting Starting kubelet.", "NodeNotReady", "Normal NodeReady Node n1 status is now: NodeReady"} {
		if !strings.Contains(got, want) {
			t.Errorf("no event %q in:\n%s", want, got)
		}
	}
}

// TestVolumesInUseAreSentAtOnce: a pod waits until the control plane knows that its volume is in use.
func TestVolumesInUseAreSentAtOnce(t *testing.T) {
	r := newRig(t, Config{})
	r.start()
	r.registered()
	r.quiet()
	for _, want := range [][]v1.UniqueVolumeName{{"kubernetes.io/csi/d^h"}, nil} {
		r.set(func() { r.inUse = want })
		r.changed.Send()
		r.expect("PATCH")
		if got := r.api.Node().Status.VolumesInUse; !slices.Equal(got, want) {
			t.Errorf("volumesInUse %q, want %q", got, want)
		}
		for range 2 { // the second time nothing needs to be sent
			r.quiet()
			r.set(func() {
				if sent := r.api.Node(); r.reported == nil || !slices.Equal(r.reported.Status.VolumesInUse, want) || r.reported.ResourceVersion != sent.ResourceVersion {
					t.Errorf("reported %v, want that of %v", r.reported, sent)
				}
				r.reported = nil
			})
			r.changed.Send()
		}
	}
}

// TestComplains: one Event reports why the node is not ready, if the reason lasts.
func TestComplains(t *testing.T) {
	r := newRig(t, Config{})
	r.start()
	r.registered()
	r.quiet()
	complaints := func() (all []string) {
		r.quiet()
		for len(r.events.Events) > 0 {
			if e := <-r.events.Events; strings.Contains(e, "KubeletNotReady") {
				all = append(all, e)
			}
		}
		return all
	}
	r.set(func() { r.engine = errors.New("connection\nrefused") })
	r.changed.Send()
	r.expect("PATCH")
	if got := complaints(); len(got) > 0 {
		t.Errorf("told immediately: %q", got)
	}
	r.clock.Step(patience)
	if got := complaints(); len(got) != 1 || got[0] != "Warning KubeletNotReady container runtime is down: connection refused" {
		t.Errorf("told was %q", got)
	}
	r.set(func() { r.engine = errors.New(strings.Repeat("ä", longestEvent)) })
	r.changed.Send()
	r.expect("PATCH")
	r.clock.Step(patience)
	if got := complaints(); len(got) != 1 || len(got[0]) > longestEvent+30 || !utf8.ValidString(got[0]) {
		t.Errorf("another reason is told once: %q", got)
	}
}

func TestAdoptsAnExistingNode(t *testing.T) {
	r := newRig(t, Config{Labels: map[string]string{"pool": "new"}})
	r.api.put(&v1.Node{})
	r.api.edit(func(n *v1.Node) {
		n.Name, n.UID = "n1", "old"
		n.Labels = map[string]string{"pool": "old", "theirs": "x", "node-role.kubernetes.io/worker": ""}
		n.Annotations = map[string]string{"theirs": "y"}
		n.Spec.PodCIDR = "10.244.1.0/24"
		n.Spec.Taints = []v1.Taint{{Key: "theirs", Effect: v1.TaintEffectNoSchedule}}
		n.Status.Capacity = v1.ResourceList{"example.com/dongle": resource.MustParse("2")}
		n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.9.9.9"}, {Type: v1.NodeInternalIP, Address: "fd00::9"}}
		n.Status.Conditions = []v1.NodeCondition{{Type: "TheirProblem", Status: v1.ConditionFalse}}
	})
	r.start()
	r.expect("PATCH")
	r.registered()
	r.quiet()
	n := r.api.Node()
	if n.Labels["pool"] != "new" || n.Labels["theirs"] != "x" || n.Annotations["theirs"] != "y" || n.Labels["kubernetes.io/os"] != "linux" {
		t.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
	}
	if len(n.Status.Addresses) != 2 || n.Status.Addresses[0].Address != "10.0.0.1" || n.Status.Addresses[1].Type != v1.NodeHostName {
		t.Errorf("addresses %v", n.Status.Addresses)
	}
	if q := n.Status.Allocatable["example.com/dongle"]; q.Value() != 2 || find(n.Status.Conditions, "TheirProblem") == nil {
		t.Errorf("foreign parts of the status are lost: %+v", n.Status)
	}

	// Later changes by others: a label that we need is restored, one of the user's now belongs to them, and two addresses of one type
	// survive.
	r.api.edit(func(n *v1.Node) { delete(n.Labels, "kubernetes.io/os"); n.Labels["pool"] = "admin" })
	r.set(func() { r.addrs = append(r.addrs, netip.MustParseAddr("fd00::1")) })
	r.changed.Send()
	r.expect("PATCH")
	n = r.api.Node()
	if n.Labels["kubernetes.io/os"] != "linux" || n.Labels["pool"] != "admin" || len(n.Status.Addresses) != 3 {
		t.Errorf("labels %v, addresses %v", n.Labels, n.Status.Addresses)
	}
}

func TestComesBackAfterTrouble(t *testing.T) {
	r := newRig(t, Config{})
	r.api.fail = []int{500, 503}
	r.start()
	r.wait(time.Minute)
	r.wait(time.Minute)
	r.expect("POST /api/v1/nodes")
	r.registered()
	r.quiet()

	// A single failed request is retried before the next tick.
	r.api.mu.Lock()
	r.api.fail = []int{500}
	r.api.mu.Unlock()
	r.set(func() { r.engine = errors.New("x") })
	r.changed.Send()
	r.expect("PATCH")

	// A deleted Node is registered again.
	r.api.mu.Lock()
	r.api.node = nil
	r.api.mu.Unlock()
	r.changed.Send()
	r.expect("POST /api/v1/nodes")
}

func TestUnregistered(t *testing.T) {
	r := newRig(t, Config{Unregistered: true})
	r.start()
	r.soon(r.clock.waiting, "it does not wait for a Node that does not exist")
	r.api.mu.Lock()
	r.api.put(&v1.Node{})
	r.api.node.Name = "n1"
	r.api.mu.Unlock()
	r.clock.Step(time.Minute)
	r.expect("PATCH")
	r.registered()
	if log := r.api.requests(); strings.Contains(log, "POST /api/v1/nodes") {
		t.Errorf("created its Node:\n%s", log)
	}
}

func TestUnschedulableEvents(t *testing.T) {
	r := newRig(t, Config{})
	r.start()
	r.registered()
	r.quiet()
	r.api.edit(func(n *v1.Node) { n.Spec.Unschedulable = true })
	r.quiet()
	for {
		select {
		case e := <-r.events.Events:
			if strings.Contains(e, "NodeNotSchedulable") {
				return
			}
		default:
			t.Fatal("no event for a cordoned node")
		}
	}
}

// TestPressureAndShutdown: pressure from the guard and a host shutdown appear in the status as soon as they wake the manager.
func TestPressureAndShutdown(t *testing.T) {
	r := newRig(t, Config{})
	r.start()
	r.registered()
	r.quiet()
	r.mu.Lock()
	r.pressure, r.shutdown = []v1.NodeConditionType{v1.NodeMemoryPressure}, true
	r.mu.Unlock()
	r.changed.Send()
	r.expect("PATCH /api/v1/nodes/n1/status")
	conditions := r.api.Node().Status.Conditions
	if c := find(conditions, v1.NodeMemoryPressure); c == nil || c.Status != v1.ConditionTrue {
		t.Errorf("memory: %+v", c)
	}
	if c := find(conditions, v1.NodeDiskPressure); c == nil || c.Status != v1.ConditionFalse {
		t.Errorf("disk: %+v", c)
	}
	if c := find(conditions, v1.NodeReady); c == nil || c.Status != v1.ConditionFalse || c.Message != "node is shutting down" {
		t.Errorf("ready: %+v", c)
	}
}
