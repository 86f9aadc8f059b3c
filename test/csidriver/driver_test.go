package csidriver_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/test/csidriver"
)

// running is a driver and a kubelet's part that finds it.
type running struct {
	t        *testing.T
	registry *drivers.Registry
	csidriver.Outside
	root string
	stop func() // the driver
}

func start(t *testing.T) *running {
	root, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	r := &running{t: t, root: root, Outside: csidriver.Outside{Data: filepath.Join(root, "data")}}
	r.registry = drivers.New("n1", drivers.Parts{Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}})
	watcher := plugins.New(plugins.Config{Dir: filepath.Join(root, "reg"), Handlers: map[string]plugins.Handler{registration.CSIPlugin: r.registry}, Clock: clock.RealClock{}})
	r.stop = r.run(r.driver)
	r.run(watcher.Run)
	return r
}

func (r *running) driver(ctx context.Context) error {
	d, err := csidriver.New(csidriver.Config{Name: "dir.winkube.test", NodeID: "n1", Endpoint: filepath.Join(r.root, "csi.sock"), Registry: filepath.Join(r.root, "reg"), Data: r.Data})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// run runs a part until stop is called or the test ends.
func (r *running) run(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(stop)
	return stop
}

// soon waits until the driver is registered, or no longer.
func (r *running) soon(registered bool) csi.Driver {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		d, err := r.registry.Driver("dir.winkube.test")
		if (err == nil) == registered {
			return d
		}
		if time.Now().After(end) {
			r.t.Fatalf("registered: %v, want %v", err == nil, registered)
		}
	}
}

// TestRegistersItself: the kubelet's own parts find the driver, lose it when it ends, and find it again.
func TestRegistersItself(t *testing.T) {
	r := start(t)
	if d := r.soon(true); d.NodeID() != "n1" || !d.Has(pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		t.Errorf("got node id %s", d.NodeID())
	}
	r.stop()
	r.soon(false)
	r.run(r.driver)
	r.soon(true)
}

// TestDisturbances: a test beside the driver has its calls fail and hang, and reads them.
func TestDisturbances(t *testing.T) {
	r := start(t)
	d := r.soon(true)
	call := func(patience time.Duration) codes.Code {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := d.Node().NodeUnstageVolume(ctx, &pb.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: filepath.Join(r.root, "stage")})
		return status.Code(err)
	}
	want := func(what string, got, code codes.Code, err error) {
		t.Helper()
		if got != code || err != nil {
			t.Errorf("%s: %v, %v, want %v", what, got, err, code)
		}
	}
	err := r.Fail("NodeUnstageVolume", "the disk is full")
	want("fails", call(time.Minute), codes.Internal, err)
	err = r.Fail("NodeUnstageVolume", "")
	want("no longer", call(time.Minute), codes.OK, err)
	err = r.Hang("NodeUnstageVolume")
	want("hangs", call(100*time.Millisecond), codes.DeadlineExceeded, err)
	err = r.Resume("NodeUnstageVolume")
	want("resumed", call(time.Minute), codes.OK, err)
	calls, err := r.Calls()
	if err != nil || !slices.Contains(calls, "begin NodeUnstageVolume v "+filepath.Join(r.root, "stage")) || !slices.Contains(calls, "end NodeUnstageVolume v Internal") {
		t.Errorf("calls %q, %v", calls, err)
	}
}

// TestVolumeLife: a volume is staged, published read-only, measured and taken away again, with its files kept; an inline one goes with its publish.
func TestVolumeLife(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := start(t)
	d := r.soon(true).Node()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	id, err := r.Make("one", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Content(id), "file"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	stage, target := filepath.Join(r.root, "stage"), filepath.Join(r.root, "target")
	capability := &pb.VolumeCapability{AccessType: &pb.VolumeCapability_Mount{Mount: &pb.VolumeCapability_MountVolume{}}, AccessMode: &pb.VolumeCapability_AccessMode{Mode: pb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	must := func(_ any, err error) {
		t.Helper()
		if status.Code(err) == codes.Unknown && os.IsPermission(err) {
			t.Skip("mounting is not allowed here")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.NodeStageVolume(ctx, &pb.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: stage, VolumeCapability: capability}))
	must(d.NodePublishVolume(ctx, &pb.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: stage, TargetPath: target, VolumeCapability: capability, Readonly: true}))
	if data, err := os.ReadFile(filepath.Join(target, "file")); string(data) != "12345" {
		t.Errorf("read %q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(target, "new"), nil, 0o600); err == nil {
		t.Error("wrote to a read-only volume")
	}
	if err := r.SetAbnormal(id, "a bad disk"); err != nil {
		t.Error(err)
	}
	if err := r.Resize(id, 2000); err != nil {
		t.Error(err)
	}
	figures, err := d.NodeGetVolumeStats(ctx, &pb.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
	must(figures, err)
	if u := figures.GetUsage()[0]; u.GetTotal() != 2000 || u.GetUsed() != 5 || !figures.GetVolumeCondition().GetAbnormal() {
		t.Errorf("figures %v", figures)
	}
	must(d.NodeUnpublishVolume(ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}))
	must(d.NodeUnstageVolume(ctx, &pb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stage}))
	must(d.NodePublishVolume(ctx, &pb.NodePublishVolumeRequest{VolumeId: "csi-inline", TargetPath: target, VolumeCapability: capability, VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"}}))
	if err := os.WriteFile(filepath.Join(target, "new"), nil, 0o600); err != nil {
		t.Error(err)
	}
	must(d.NodeUnpublishVolume(ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: "csi-inline", TargetPath: target}))
	if left, err := r.Volumes(); err != nil || !slices.Equal(left, []string{id}) {
		t.Errorf("left: %q, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(r.Content(id), "file")); err != nil {
		t.Error(err)
	}
}
