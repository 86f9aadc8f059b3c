package csi_test

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/csi/csitest"
	csivolume "github.com/winkube/winkube/pkg/volume/csi"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

const driverName = "disk.example.com"

// objects is the API server of the kind, in memory.
type objects struct {
	*volumetest.API
	mu      sync.Mutex
	drivers map[string]*storagev1.CSIDriver
	attach  map[string]*storagev1.VolumeAttachment
	node    *v1.Node
	next    chan struct{}
	patches []string // of claims
	sent    func()   // what comes before each look at the Node, or nil
	read    func()   // what comes before each look at a claim, or nil
}

func (o *objects) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if o.read != nil {
		o.read()
	}
	return o.API.Claim(ctx, namespace, name)
}

func (o *objects) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	if o.Down != nil {
		return nil, o.Down
	}
	return o.KnownCSIDriver(name), nil
}

func (o *objects) KnownCSIDriver(name string) *storagev1.CSIDriver {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.drivers[name]
}

func (o *objects) VolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a := o.attach[name]; a != nil {
		return a.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "volumeattachments"}, name)
}

func (o *objects) NodeState() (*v1.Node, <-chan struct{}) {
	if o.sent != nil {
		o.sent()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.node, o.next
}

// change changes what the API server has, and shows the Node again.
func (o *objects) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	close(o.next)
	o.next = make(chan struct{})
}

// rig is a Manager with the kind, over a driver in memory.
type rig struct {
	*volumetest.Rig
	t       *testing.T
	driver  *csitest.Driver
	drivers csitest.Drivers
	api     *objects
	changed wake.Signal
	again   wake.Signal
	kind    *csivolume.Kind
	events  volumetest.Events
	boot    string   // of the host
	selinux string   // label of containers' files on the host
	asked   []string // drivers that were asked again how many volumes they can have here; to read after kind.Wait
}

// attachFails has the attacher report a failure for the volume h.
func (r *rig) attachFails(failure *storagev1.VolumeError) {
	const id = "csi-63a6b0792f16cceffa0b0689df65a4df7e1190d3ad60d6a1f76bd5a58dcdbe6f" // sha256 of handle, driver and node
	r.api.change(func() {
		r.api.attach[id] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{AttachError: failure}}
	})
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Rig: volumetest.New(t, volumetest.Linux()), t: t, driver: csitest.New(t, driverName), changed: wake.New(), again: wake.New()}
	r.api = &objects{API: r.API, drivers: map[string]*storagev1.CSIDriver{}, attach: map[string]*storagev1.VolumeAttachment{}, next: make(chan struct{})}
	r.drivers = csitest.Drivers{driverName: r.driver}
	r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false)})
	r.driver.SetCapabilities(stages)
	r.driver.OnMount(func(_, path string) {
		if on, _ := r.Kernel.IsMount(path); !on {
			r.Kernel.Points = append(r.Kernel.Points, path)
		}
	}, func(_, path string) { _ = r.Kernel.Unmount(path) })
	r.restart()
	return r
}

// rule changes the driver's CSIDriver object.
func (r *rig) rule(spec storagev1.CSIDriverSpec) {
	r.api.change(func() {
		r.api.drivers[driverName] = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: spec}
	})
}

// restart makes an agent that only knows what is on disk.
func (r *rig) restart() {
	r.t.Helper()
	refresh := func(_ context.Context, driver string) error { r.asked = append(r.asked, driver); return nil }
	r.kind = csivolume.New(r.Host, csivolume.Parts{
		NodeName: "n", Drivers: r.drivers, Objects: r.api, Events: &r.events, Refresh: refresh, Again: r.again, Changed: r.changed, Clock: r.Clock, Boot: r.boot, SELinux: r.selinux,
	})
	r.Restart(r.kind)
}

// pod has the claim data, which is bound to the volume pv with the handle h.
func (r *rig) pod(uid string) *v1.Pod {
	r.t.Helper()
	if r.API.Claims["shop/data"] == nil {
		_, pv := r.Bind("data", v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h", VolumeAttributes: map[string]string{"a": "1"}}})
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	p := volumetest.Pod(volumetest.ClaimVol(false))
	p.UID = types.UID(uid)
	return p
}

func (r *rig) path(elements ...string) string {
	return filepath.Join(append([]string{r.Host.Root}, elements...)...)
}

// methods are the names of the calls from the nth on, without Node and Volume.
func (r *rig) methods(from int) string {
	var out []string
	for _, c := range r.driver.Calls()[from:] {
		out = append(out, strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Volume"))
	}
	return strings.Join(out, " ")
}

func (r *rig) want(calls string) {
	r.t.Helper()
	if got := r.methods(0); got != calls {
		r.t.Fatalf("calls: %s, want %s", got, calls)
	}
}

func (r *rig) mustClean(uid string) {
	r.t.Helper()
	if err := r.Clean(r.t.Context(), types.UID(uid)); err != nil {
		r.t.Fatal(err)
	}
}

// nothingLeft: the driver has no volume, and neither disk nor mount table has a trace of one.
func (r *rig) nothingLeft() {
	r.t.Helper()
	if left := r.driver.Volumes(); len(left) > 0 {
		r.t.Errorf("the driver has %v", left)
	}
	if len(r.Kernel.Points) > 0 {
		r.t.Errorf("mounted: %q", r.Kernel.Points)
	}
	_ = filepath.WalkDir(r.Host.Root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (!e.IsDir() || strings.HasPrefix(path, r.path("pods")+"/")) {
			r.t.Errorf("left: %s", path)
		}
		return nil
	})
	if left := r.kind.InUse(); len(left) > 0 {
		r.t.Errorf("volumesInUse: %q", left)
	}
}

func (o *objects) PatchClaimStatus(_ context.Context, namespace, name string, patch []byte) (*v1.PersistentVolumeClaim, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.patches = append(o.patches, namespace+"/"+name+" "+string(patch))
	return o.Patched(namespace, name, patch)
}

// Token fills in what the API server would.
func (o *objects) Token(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	request = request.DeepCopy()
	if request.Spec.ExpirationSeconds == nil {
		request.Spec.ExpirationSeconds = new(int64(3600))
	}
	return o.API.Token(ctx, namespace, account, request)
}
