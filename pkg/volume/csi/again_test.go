package csi_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/volume"
)

// TestRecordOfRunningPod: a record that was lost or cannot be read is written again while the pod runs, so that its end finds everything, whether the
// driver stages or not.
func TestRecordOfRunningPod(t *testing.T) {
	for _, capabilities := range [][]pb.NodeServiceCapability_RPC_Type{nil, {stages}} {
		for _, block := range []bool{false, true} {
			for _, broken := range []string{"", "{", `{"driverName":""}`} {
				r := newRig(t)
				r.attachable()
				r.driver.SetCapabilities(capabilities...)
				p, record := r.pod("a"), r.path("pods/a/volumes/kubernetes.io~csi/pv/vol_data.json")
				if block {
					p, record = r.device("a"), r.path("plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json")
				}
				r.MustPrepare(p)
				before, err := os.ReadFile(record)
				if err != nil {
					t.Fatal(err)
				}
				if err = os.WriteFile(record, []byte(broken), 0o600); broken == "" {
					err = os.Remove(record)
				}
				if err != nil {
					t.Fatal(err)
				}
				r.restart()
				calls := r.methods(0)
				r.MustPrepare(p)
				r.want(calls) // a running pod needs no driver
				if after, err := os.ReadFile(record); err != nil || !bytes.Equal(after, before) {
					t.Errorf("block %v, %q: the record is %s, %v; want %s", block, broken, after, err, before)
				}
				r.wantInUse("the pod runs", 1)
				r.mustClean("a")
				r.nothingLeft()
			}
		}
	}
}

// TestLostNodeRecord: a staged volume whose node record is lost or wrong is still in use and unstaged, and the record is written again while a
// pod runs.
func TestLostNodeRecord(t *testing.T) {
	for _, broken := range []string{"", "{", `{"driverName":"d","volumeHandle":"other"}`} {
		for _, runs := range []bool{true, false} { // until the kubelet looks again
			r := newRig(t)
			r.attachable()
			r.MustPrepare(r.pod("a"))
			record := r.path(stageDir, "vol_data.json")
			before, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			if err = os.WriteFile(record, []byte(broken), 0o600); broken == "" {
				err = os.Remove(record)
			}
			if err != nil {
				t.Fatal(err)
			}
			r.restart()
			if runs {
				r.MustPrepare(r.pod("a"))
				r.want("Stage Publish")
				if after, err := os.ReadFile(record); err != nil || !bytes.Equal(after, before) {
					t.Errorf("%q: the record is %s, %v; want %s", broken, after, err, before)
				}
			}
			r.wantInUse("the pod runs", 1)
			r.mustClean("a")
			r.want("Stage Publish Unpublish Unstage")
			r.nothingLeft()
		}
	}
}

// TestNoNodeRecord: a driver that does not stage needs no node record.
func TestNoNodeRecord(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities()
	for range 2 {
		r.MustPrepare(r.pod("a"))
		if _, err := os.Stat(r.path("plugins")); err == nil {
			t.Error("a record of a volume that was not staged")
		}
		r.restart()
	}
	r.mustClean("a")
	r.want("Publish Unpublish")
	r.nothingLeft()
}

// TestRecordOfAnotherVolume: a PersistentVolume is deleted and recreated under its name while a pod runs. The pod keeps the old volume, which its
// record names, and the new volume is not touched.
func TestRecordOfAnotherVolume(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := r.pod("a")
	r.MustPrepare(p)
	r.kind.Wait()
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "other"}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Spec.Resources.Requests, claim.Status.Capacity = pv.Spec.Capacity, v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	r.restart()
	r.MustPrepare(p)
	r.kind.Wait()
	r.want("Stage Publish")
	r.mustClean("a")
	if got := r.driver.Calls("NodeUnpublishVolume")[0].Request.(*pb.NodeUnpublishVolumeRequest).VolumeId; got != "h" {
		t.Errorf("unpublished %s", got)
	}
	r.nothingLeft()
}

// TestGrowsOnEachNode: each node expands a shared volume, and one node reports it in the claim.
func TestGrowsOnEachNode(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	a, b := r.pod("a"), r.pod("b")
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	size := func(n int64) {
		list := v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
		pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = list, list, list
	}
	look := func(p *v1.Pod) {
		t.Helper()
		r.MustPrepare(p)
		r.kind.Wait()
	}
	size(1)
	look(a)
	r.want("Stage Publish")
	size(2) // the kubelet of another node was first
	look(a)
	look(a)
	look(b)
	r.want("Stage Publish Expand Publish")
	if got := r.driver.Volumes()["h"].Size; got != 2<<30 {
		t.Errorf("%d bytes", got)
	}
	if len(r.api.patches) > 0 {
		t.Errorf("the claim says so already: %q", r.api.patches)
	}
	r.mustClean("a")
	r.mustClean("b")
	size(3)
	look(a) // staged as it is now
	r.want("Stage Publish Expand Publish Unpublish Unpublish Unstage Stage Publish")
	r.mustClean("a")
	r.nothingLeft()
}

// TestInfeasibleHere: a size that a node cannot provide is not retried once another node has provided a smaller one, which this node follows.
func TestInfeasibleHere(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := r.pod("a")
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	size := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
	}
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = size(1), size(1), size(1)
	r.MustPrepare(p)
	r.kind.Wait()
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = size(3), size(2), size(3)
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizeInfeasible}
	for range 2 {
		r.MustPrepare(p)
		r.kind.Wait()
	}
	r.want("Stage Publish Expand")
	if got := r.driver.Volumes()["h"].Size; got != 2<<30 || len(r.api.patches) > 0 {
		t.Errorf("%d bytes, patches %q", got, r.api.patches)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestSizeOfEndedPod: reading a claim until after its pod has ended leaves nothing behind: the next pod's volume is staged with its own size.
func TestSizeOfEndedPod(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	a := r.pod("a")
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	size := func(n int64) {
		list := v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
		pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = list, list, list
	}
	size(1)
	ended := make(chan struct{})
	r.api.read = func() { <-ended }
	r.MustPrepare(a)
	r.mustClean("a")
	close(ended)
	r.kind.Wait()
	b := r.pod("b")
	size(2)
	r.MustPrepare(b)
	r.kind.Wait()
	r.want("Stage Publish Unpublish Unstage Stage Publish")
	r.mustClean("b")
	r.nothingLeft()
}

// TestUnstageWithoutAnswer: a driver that dies while it unstages a volume may have done it or not, so that the next pod has it staged again.
func TestUnstageWithoutAnswer(t *testing.T) {
	r := newRig(t)
	r.MustPrepare(r.pod("a"))
	r.driver.Fail("NodeUnstageVolume", status.Error(codes.Unavailable, "the connection is lost"))
	r.mustClean("a")
	r.MustPrepare(r.pod("b"))
	r.want("Stage Publish Unpublish Unstage Stage Publish")
	if err := r.kind.Orphans(t.Context()); err != nil { // Run, as the driver has failed
		t.Error(err)
	}
	r.want("Stage Publish Unpublish Unstage Stage Publish")
	r.mustClean("b")
	r.nothingLeft()
}

// TestUnstageRefused: a pod does not wait until its volume is unstaged. Run tries that again until the driver does it, also after a restart of the
// agent, and with a record that was lost in between.
func TestUnstageRefused(t *testing.T) {
	for name, block := range map[string]bool{"file system": false, "device": true} {
		for _, lost := range []bool{false, true} {
			if block && lost {
				continue // the record is also the pod's
			}
			r := newRig(t)
			r.attachable()
			p := r.pod("a")
			if block {
				p = r.device("a")
			}
			r.MustPrepare(p)
			if lost {
				if err := os.Remove(r.path(stageDir, "vol_data.json")); err != nil {
					t.Fatal(err)
				}
			}
			r.driver.Fail("NodeUnstageVolume", status.Error(codes.InvalidArgument, "no"))
			r.mustClean("a")
			r.want("Stage Publish Unpublish Unstage")
			if _, err := os.Stat(r.path("pods/a/volumes/kubernetes.io~csi/pv")); err == nil {
				t.Errorf("%s: the pod waits", name)
			}
			r.wantInUse(name+", refused", 1)
			r.restart()
			r.wantInUse(name+", refused and restarted", 1)
			r.driver.Fail("NodeUnstageVolume", status.Error(codes.InvalidArgument, "no"))
			if err := r.kind.Orphans(t.Context()); err == nil || !strings.Contains(err.Error(), "attacher.UnmountDevice failed: rpc error: code = InvalidArgument desc = no") {
				t.Errorf("%s: %v", name, err)
			}
			if err := r.kind.Orphans(t.Context()); err != nil {
				t.Error(err)
			}
			r.want("Stage Publish Unpublish Unstage Unstage Unstage")
			r.nothingLeft()
		}
	}
}

// TestRunTriesAgain: a volume that could not be unstaged wakes Run.
func TestRunTriesAgain(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.kind.Run(ctx) }()
	r.MustPrepare(r.pod("a"))
	r.driver.Fail("NodeUnstageVolume", status.Error(codes.InvalidArgument, "no"))
	r.mustClean("a")
	r.awaitUnstaged()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.nothingLeft()
}

// awaitUnstaged waits until the volume's record is gone, which no event announces.
func (r *rig) awaitUnstaged() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(r.path(stageDir, "vol_data.json")); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the volume is still staged after a minute")
		}
	}
}

// TestRunTriesAgainForAnotherDriver: Run does not wait any longer for a driver that refused when another one of its name has registered.
func TestRunTriesAgainForAnotherDriver(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.kind.Run(ctx) }()
	r.MustPrepare(r.pod("a"))
	no := status.Error(codes.InvalidArgument, "no")
	r.driver.Fail("NodeUnstageVolume", no, no) // of the pod's end, and of Run
	refused := time.Now()
	r.mustClean("a")
	for deadline := refused.Add(time.Minute); strings.Count(r.methods(0), "Unstage") < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Run has not asked the driver after a minute")
		}
	}
	r.again.Send()
	r.awaitUnstaged()
	if took := time.Since(refused); took >= volume.FirstTidy {
		t.Errorf("unstaged after %s: Run has waited for its next turn", took)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.nothingLeft()
}

// TestUnfinishedRecord: a kill while the node's record is written leaves a file that must not keep the volume's directory.
func TestUnfinishedRecord(t *testing.T) {
	for name, recorded := range map[string]bool{"record written again": true, "first record": false} {
		for _, block := range []bool{false, true} {
			r := newRig(t)
			p, dir := r.pod("a"), r.path(stageDir)
			if block {
				p, dir = r.device("a"), r.path("plugins/kubernetes.io/csi/volumeDevices/pv/data")
			}
			if recorded {
				r.MustPrepare(p)
			} else {
				r.driver.Fail("NodeStageVolume", status.Error(codes.Unavailable, "the connection is lost"))
				r.mustWait(p, "the connection is lost")
				if !block { // as it was before the node's record and what follows
					if err := os.RemoveAll(dir); err != nil {
						t.Fatal(err)
					}
				}
			}
			file := filepath.Join(dir, ".vol_data-123")
			if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(file, []byte("{"), 0o600)); err != nil {
				t.Fatal(err)
			}
			r.restart()
			r.mustClean("a")
			r.nothingLeft()
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, block %v: the directory is still there: %v", name, block, err)
			}
		}
	}
}
