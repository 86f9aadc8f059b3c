package csi_test

import (
	"slices"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestGrowFails: users see on the pod that a volume could not be expanded, and the claim's status says whether another attempt makes sense, as with
// upstream's kubelet.
func TestGrowFails(t *testing.T) {
	size := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
	}
	const failed = `pod shop/web a Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : Expander.NodeExpand failed to expand the volume : rpc error: code = `
	for _, test := range []struct {
		code           codes.Code
		event, patched bool
		infeasible     bool
	}{
		{codes.Internal, true, true, false},
		{codes.OutOfRange, true, true, true},
		{codes.FailedPrecondition, false, true, false}, // the driver expands volumes only while no pod uses them
		{codes.Unavailable, true, false, false},        // it may still be at work
		{codes.ResourceExhausted, true, false, false},
	} {
		t.Run(test.code.String(), func(t *testing.T) {
			r := newRig(t)
			r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
			p := r.pod("a")
			claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
			pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = size(2), size(1), size(2)
			claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
			claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending}}
			r.driver.Fail("NodeExpandVolume", status.Error(test.code, "no"))
			r.MustPrepare(p)
			r.kind.Wait()
			var want []string
			if test.event {
				want = []string{failed + test.code.String() + " desc = no"}
			}
			if got := r.events.Take(); !slices.Equal(got, want) {
				t.Errorf("Events %q, want %q", got, want)
			}
			if got := len(r.api.patches) == 2; got != test.patched || !strings.Contains(r.api.patches[0], `{"storage":"NodeResizeInProgress"}`) {
				t.Fatalf("patches of the claim: %q", r.api.patches)
			}
			claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
			if test.patched {
				patch := r.api.patches[1]
				for what, want := range map[string]bool{
					`"type":"NodeResizeError","status":"True"`:                        true,
					`"message":"failed to expand pvc with Expander.NodeExpand failed`: true,
					`"type":"FileSystemResizePending"`:                                true,
					`"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"}`:  test.infeasible,
					`"capacity"`: false,
				} {
					if strings.Contains(patch, what) != want {
						t.Errorf("patch %s: %s is there: %v", patch, what, !want)
					}
				}
				claim.Status.Conditions = append(claim.Status.Conditions, v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue})
			}
			if test.infeasible {
				claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
			}
			r.driver.Fail("NodeExpandVolume", status.Error(test.code, "no"))
			r.MustPrepare(p)
			r.kind.Wait()
			if got := len(r.driver.Calls("NodeExpandVolume")); got != 2 && !test.infeasible || got != 1 && test.infeasible {
				t.Errorf("the driver was called %d times", got)
			}
			if len(r.api.patches) > 2 {
				t.Errorf("the claim says so already: %q", r.api.patches[2:])
			}
			r.mustClean("a")
			r.nothingLeft()
		})
	}
}

// TestGrowGivenUp: once the user has lowered the request of a claim that failed, the node gives up the larger size, so that the controller can follow.
func TestGrowGivenUp(t *testing.T) {
	r := newRig(t)
	r.driver.SetCapabilities(stages, pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p := r.pod("a")
	claim, pv := r.API.Claims["shop/data"], r.API.Volumes["pv"]
	size := func(n int64) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(n<<30, resource.BinarySI)}
	}
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests, claim.Status.AllocatedResources = size(9), size(1), size(9), size(9)
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizeInProgress}
	for _, request := range []int64{9, 2} {
		claim.Spec.Resources.Requests = size(request)
		r.driver.Fail("NodeExpandVolume", status.Error(codes.Internal, "no"))
		r.MustPrepare(p)
		r.kind.Wait()
		claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue}}
	}
	const infeasible = `"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"}`
	if got := r.api.patches; len(got) != 2 || strings.Contains(got[0], infeasible) || !strings.Contains(got[1], infeasible) {
		t.Errorf("patches of the claim: %q", got)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestAttachExhausted: where the attacher says that this node can have no more volumes, a driver with a period is asked again, and only then.
func TestAttachExhausted(t *testing.T) {
	code := func(c codes.Code) *int32 { return new(int32(c)) }
	for _, test := range []struct {
		code   *int32
		period *int64
		want   []string
	}{
		{code(codes.ResourceExhausted), new(int64(60)), []string{driverName}},
		{code(codes.ResourceExhausted), nil, nil},
		{code(codes.Internal), new(int64(60)), nil},
		{nil, new(int64(60)), nil},
	} {
		r := newRig(t)
		r.rule(storagev1.CSIDriverSpec{AttachRequired: new(true), NodeAllocatableUpdatePeriodSeconds: test.period})
		p := r.pod("a")
		r.attachFails(&storagev1.VolumeError{Message: "too many", ErrorCode: test.code})
		if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "too many") {
			t.Errorf("code %v: %v", test.code, err)
		}
		r.kind.Wait()
		if !slices.Equal(r.asked, test.want) {
			t.Errorf("code %v, period %v: asked %q, want %q", test.code, test.period, r.asked, test.want)
		}
	}
}
