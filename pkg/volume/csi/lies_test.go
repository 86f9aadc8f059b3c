package csi_test

import (
	"os"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestDriverLies: a driver that cannot do what it says it can, or needs what it does not say, keeps its own pods waiting with its words. Nothing is
// deleted, and the pods end without a trace.
func TestDriverLies(t *testing.T) {
	unimplemented := status.Error(codes.Unimplemented, "unknown method")
	t.Run("it cannot stage", func(t *testing.T) {
		r := newRig(t)
		p := r.pod("a")
		r.driver.Fail("NodeStageVolume", unimplemented, unimplemented)
		for range 2 {
			r.mustWait(p, "code = Unimplemented desc = unknown method")
		}
		r.want("Stage Stage")
		r.mustClean("a")
		r.want("Stage Stage")
		r.nothingLeft()
	})
	t.Run("it must stage", func(t *testing.T) {
		r := newRig(t)
		r.driver.SetCapabilities()
		p := r.pod("a")
		r.driver.Fail("NodePublishVolume", status.Error(codes.FailedPrecondition, "not staged"))
		r.mustWait(p, "code = FailedPrecondition desc = not staged")
		r.want("Publish")
		r.mustClean("a")
		r.want("Publish")
		r.nothingLeft()
	})
	t.Run("it cannot unstage", func(t *testing.T) {
		r := newRig(t)
		r.MustPrepare(r.pod("a"))
		r.driver.Fail("NodeUnstageVolume", unimplemented)
		r.mustClean("a")
		if left := r.driver.Volumes()["h"]; left.Staged == "" {
			t.Errorf("the volume is forgotten while it is staged: %+v", left)
		}
		if _, err := os.Stat(r.path(stageDir, "vol_data.json")); err != nil {
			t.Errorf("the record of a volume that is staged: %v", err)
		}
		if err := r.kind.Orphans(t.Context()); err != nil { // the driver has learnt it
			t.Error(err)
		}
		r.nothingLeft()
	})
	t.Run("it cannot expand", func(t *testing.T) {
		r := newRig(t)
		r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
		p := r.pod("a")
		size := func(n int64) v1.ResourceList {
			return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
		}
		claim := r.API.Claims["shop/data"]
		r.API.Volumes["pv"].Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = size(2), size(1), size(2)
		r.driver.Fail("NodeExpandVolume", unimplemented)
		r.MustPrepare(p)
		r.kind.Wait()
		if got := r.events.Take(); len(got) != 1 || !strings.Contains(got[0], "Warning VolumeResizeFailed") || !strings.Contains(got[0], "Unimplemented") {
			t.Errorf("Events: %q", got)
		}
		r.want("Stage Publish Expand")
		r.mustClean("a")
		r.nothingLeft()
	})
}

// mustWait: the pod does not get its volume, and why is what becomes its Event FailedMount.
func (r *rig) mustWait(p *v1.Pod, why string) {
	r.t.Helper()
	if _, err := r.Prepare(r.t.Context(), p); err == nil || !strings.HasPrefix(err.Error(), "MountVolume.SetUp failed for volume ") || !strings.Contains(err.Error(), why) {
		r.t.Errorf("Prepare: %v; want %s", err, why)
	}
}
