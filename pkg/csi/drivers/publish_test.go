package drivers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
)

const patience = time.Minute

// cluster is an API server with one Node, and a Registry that publishes there.
type cluster struct {
	t      *testing.T
	api    *clientsettest.Clientset
	r      *Registry
	clock  *testingclock.FakeClock
	known  *csiDrivers
	events chan string

	mu   sync.Mutex
	fail func(verb, resource, body string) error // the next requests
}

// NodeEvent takes the Registry's Events.
func (c *cluster) NodeEvent(kind, reason, message string) {
	c.events <- kind + " " + reason + " " + message
}

func node() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"a": "1"}}}
}

// csiDrivers are the CSIDrivers that are known.
type csiDrivers struct {
	mu      sync.Mutex
	byName  map[string]*storage.CSIDriver
	changed []func()
}

func (d *csiDrivers) KnownCSIDriver(name string) *storage.CSIDriver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byName[name]
}

func (d *csiDrivers) OnCSIDrivers(f func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed = append(d.changed, f)
	return nil
}

// period changes that of a driver; nil: it has none.
func (d *csiDrivers) period(name string, seconds *int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[name] = &storage.CSIDriver{Spec: storage.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: seconds}}
	for _, f := range d.changed {
		f()
	}
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	c := &cluster{t: t, api: clientsettest.NewClientset(append(objects, node())...), clock: testingclock.NewFakeClock(time.Unix(1e9, 0)), events: make(chan string, 100), known: &csiDrivers{byName: map[string]*storage.CSIDriver{}}}
	c.api.PrependReactor("*", "*", c.refuse)
	c.r = New("n1", Parts{Client: c.api, Objects: c.known, Events: c, Counted: (&counts{}).counted, Clock: c.clock})
	return c
}

// refuse does what the test wants, and what the API server does to entries of a CSINode that change. Source: kubernetes
// pkg/apis/storage/validation/validation.go, ValidateCSINodeUpdate.
func (c *cluster) refuse(action clienttesting.Action) (bool, runtime.Object, error) {
	body := ""
	switch a := action.(type) {
	case clienttesting.PatchAction:
		body = string(a.GetPatch())
	case clienttesting.UpdateAction:
		data, _ := json.Marshal(a.GetObject())
		body = string(data)
	}
	c.mu.Lock()
	fail := c.fail
	c.mu.Unlock()
	if fail != nil {
		if err := fail(action.GetVerb(), action.GetResource().Resource, body); err != nil {
			return true, nil, err
		}
	}
	update, ok := action.(clienttesting.UpdateAction)
	if !ok || action.GetVerb() != "update" || action.GetResource().Resource != "csinodes" {
		return false, nil, nil
	}
	stored, err := c.api.Tracker().Get(action.GetResource(), "", "n1")
	if err != nil {
		return true, nil, err
	}
	for _, old := range stored.(*storage.CSINode).Spec.Drivers {
		for _, next := range update.GetObject().(*storage.CSINode).Spec.Drivers {
			if old.Name == next.Name && (old.NodeID != next.NodeID || fmt.Sprint(old.TopologyKeys) != fmt.Sprint(next.TopologyKeys)) {
				return true, nil, apierrors.NewInvalid(storage.SchemeGroupVersion.WithKind("CSINode").GroupKind(), "n1", nil)
			}
		}
	}
	return false, nil, nil
}

func (c *cluster) failWith(fail func(verb, resource, body string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fail
}

// run runs the Registry until stop is called.
func (c *cluster) run() (stop func()) {
	c.r.SetNode(node())
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.r.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	c.t.Cleanup(stop)
	return stop
}

// soon waits until the cluster looks like want: the drivers of the CSINode, the Node's ids, its labels.
func (c *cluster) soon(want string) {
	c.t.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = c.look(); got == want {
			return
		}
	}
	c.t.Fatalf("got  %s\nwant %s", got, want)
}

func (c *cluster) look() string {
	n, err := c.api.Nodes().Get(c.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	var drivers []string
	csiNode, err := c.api.Tracker().Get(storage.SchemeGroupVersion.WithResource("csinodes"), "", "n1")
	if err != nil {
		return "no CSINode"
	}
	for _, d := range csiNode.(*storage.CSINode).Spec.Drivers {
		drivers = append(drivers, fmt.Sprintf("%s=%s%s%d", d.Name, d.NodeID, d.TopologyKeys, count(d)))
	}
	return fmt.Sprint(drivers, " ", n.Annotations[nodeIDs], " ", n.Labels)
}

func (c *cluster) csiNode() *storage.CSINode {
	n, err := c.api.CSINodes().Get(c.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// add registers a driver.
func (c *cluster) add(name string, info *pb.NodeGetInfoResponse) (*csitest.Driver, func()) {
	c.t.Helper()
	d := csitest.New(c.t, name)
	d.SetInfo(info)
	p, _ := serve(c.t, d)
	return d, register(c.t, c.r, p)
}

func TestPublish(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	stop := c.run()
	c.soon(`[]  map[a:1]`)
	n := c.csiNode()
	if got := text(t, n.OwnerReferences); got != `[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}]` {
		t.Errorf("owners: %s", got)
	}
	want := "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
	if got := n.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; got != want {
		t.Errorf("migrated: %s", got)
	}
	info := topology("id1", map[string]string{"zone": "z1"})
	info.MaxVolumesPerNode = 9
	_, release := c.add("one.example.com", info)
	c.soon(`[one.example.com=id1[zone]9] {"one.example.com":"id1"} map[a:1 zone:z1]`)
	_, releaseTwo := c.add("two.example.com", topology("id2", nil))
	c.soon(`[one.example.com=id1[zone]9 two.example.com=id2[]-1] {"one.example.com":"id1","two.example.com":"id2"} map[a:1 zone:z1]`)
	release()
	c.soon(`[two.example.com=id2[]-1] {"two.example.com":"id2"} map[a:1 zone:z1]`)
	stop() // a kubelet that ends takes nothing back
	releaseTwo()
	c.soon(`[two.example.com=id2[]-1] {"two.example.com":"id2"} map[a:1 zone:z1]`)
}

// TestRestart: what another kubelet published is found again, and nothing is written where nothing changed.
func TestRestart(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	stop := c.run()
	c.add("one.example.com", topology("id1", map[string]string{"zone": "z1"}))
	state := `[one.example.com=id1[zone]-1] {"one.example.com":"id1"} map[a:1 zone:z1]`
	c.soon(state)
	stop()
	next := New("n1", c.r.parts)
	p, _ := serve(t, func() *csitest.Driver {
		d := csitest.New(t, "one.example.com")
		d.SetInfo(topology("id1", map[string]string{"zone": "z1"}))
		return d
	}())
	c.r = next
	c.api.ClearActions()
	c.run()
	release := register(t, next, p)
	_, releaseTwo := c.add("two.example.com", topology("id2", nil))
	c.soon(`[one.example.com=id1[zone]-1 two.example.com=id2[]-1] {"one.example.com":"id1","two.example.com":"id2"} map[a:1 zone:z1]`)
	for _, action := range c.api.Actions() {
		if update, ok := action.(clienttesting.UpdateAction); ok && !strings.Contains(text(t, update.GetObject()), "two.example.com") {
			t.Errorf("wrote what was there: %s", text(t, update.GetObject()))
		}
	}
	releaseTwo()
	release()
	c.soon(`[]  map[a:1 zone:z1]`)
}

// TestChangedNodeID: the API server lets an entry go and come, but not change.
func TestChangedNodeID(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	c.run()
	_, release := c.add("one.example.com", topology("id1", nil))
	c.soon(`[one.example.com=id1[]-1] {"one.example.com":"id1"} map[a:1]`)
	c.add("one.example.com", topology("id2", nil))
	release()
	c.soon(`[one.example.com=id2[]-1] {"one.example.com":"id2"} map[a:1]`)
}

// TestFormerNode: a CSINode of a node that had the name before is replaced.
func TestFormerNode(t *testing.T) {
	pluginstest.NeedsSockets(t)
	former := newCSINode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "former"}})
	former.Spec.Drivers = []storage.CSINodeDriver{{Name: "gone.example.com", NodeID: "x"}}
	c := newCluster(t, former)
	c.run()
	c.add("one.example.com", topology("id1", nil))
	c.soon(`[one.example.com=id1[]-1] {"one.example.com":"id1"} map[a:1]`)
	if uid := c.csiNode().OwnerReferences[0].UID; uid != "u" {
		t.Errorf("it belongs to %s", uid)
	}
}

func TestConflictsAreRetried(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	left := map[string]int{"patch nodes": 1, "update csinodes": 2}
	c.failWith(func(verb, resource, _ string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if left[verb+" "+resource]--; left[verb+" "+resource] >= 0 {
			return apierrors.NewConflict(storage.Resource(resource), "n1", nil)
		}
		return nil
	})
	c.run()
	c.add("one.example.com", topology("id1", nil))
	c.soon(`[one.example.com=id1[]-1] {"one.example.com":"id1"} map[a:1]`)
}

// TestRefusedDriver: a driver that the API server refuses holds up no other, is reported once, and is published when that is possible.
func TestRefusedDriver(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	c.failWith(func(_, resource, body string) error {
		if resource == "nodes" && strings.Contains(body, "forbidden") {
			return apierrors.NewForbidden(v1.Resource("nodes"), "n1", fmt.Errorf("not that label"))
		}
		return nil
	})
	c.run()
	c.add("a.example.com", topology("id1", map[string]string{"forbidden": "z"}))
	c.add("b.example.com", topology("id2", nil))
	c.soon(`[b.example.com=id2[]-1] {"b.example.com":"id2"} map[a:1]`)
	select {
	case got := <-c.events:
		want := `Warning CSIDriverNotPublished CSI driver a.example.com is not in the Node's CSINode: nodes "n1" is forbidden: not that label`
		if got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	case <-time.After(patience):
		t.Fatal("no Event")
	}
	c.step()
	c.waiting() // it was refused again
	c.failWith(nil)
	c.step()
	c.soon(`[b.example.com=id2[]-1 a.example.com=id1[forbidden]-1] {"a.example.com":"id1","b.example.com":"id2"} map[a:1 forbidden:z]`)
	if len(c.events) != 0 {
		t.Errorf("another Event: %s", <-c.events)
	}
}

// step lets the pause of a failure pass.
func (c *cluster) step() {
	c.t.Helper()
	c.waiting()
	c.clock.Step(lastPause)
}

// waiting waits until the Registry waits for a time.
func (c *cluster) waiting() {
	c.t.Helper()
	for end := time.Now().Add(patience); !c.clock.HasWaiters(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatal("nothing is tried again")
		}
	}
}

// TestPeriod: with nodeAllocatableUpdatePeriodSeconds a driver is asked again, and its new limit is published.
func TestPeriod(t *testing.T) {
	pluginstest.NeedsSockets(t)
	c := newCluster(t)
	c.run()
	d, _ := c.add("one.example.com", &pb.NodeGetInfoResponse{NodeId: "id1", MaxVolumesPerNode: 9})
	c.soon(`[one.example.com=id1[]9] {"one.example.com":"id1"} map[a:1]`)
	d.SetInfo(&pb.NodeGetInfoResponse{NodeId: "id1", MaxVolumesPerNode: 8})
	c.known.period("one.example.com", new(int64(60)))
	c.step()
	c.soon(`[one.example.com=id1[]8] {"one.example.com":"id1"} map[a:1]`)
	d.SetInfo(&pb.NodeGetInfoResponse{NodeId: "id1", MaxVolumesPerNode: 7})
	if err := c.r.Refresh(t.Context(), "one.example.com"); err != nil {
		t.Error(err)
	}
	c.soon(`[one.example.com=id1[]7] {"one.example.com":"id1"} map[a:1]`)
}
