package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/volume"
)

// growTime covers reading the claim, waiting for the volume's turn, and the call.
const growTime = 2 * callTime

// growSoon makes the driver expand v on this node if its claim has grown. The pod waits neither for that nor for the API server. It is called by
// each Prepare, so once per --sync-frequency (60 s) for a running pod.
func (k *Kind) growSoon(v volume.Volume, d described, at place) {
	if v.Claim == "" || d.readOnly {
		return
	}
	driver, err := k.parts.Drivers.Driver(d.driver)
	if err != nil || !driver.Has(pb.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.growing[at.target] {
		return
	}
	k.growing[at.target] = true
	known := k.sizes.get(d.key) // now, because the pod may end before its claim has been read
	k.crew.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), growTime)
		defer cancel()
		if d.migrated {
			ctx = csi.Migrated(ctx)
		}
		if err := k.grow(ctx, v, d, at, driver, known); err != nil {
			klog.ErrorS(err, "Cannot expand a CSI volume on this node; trying again", "pod", klog.KObj(v.Pod), "volume", v.Spec.Name, "driver", d.driver)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.growing, at.target)
	})
}

func (k *Kind) grow(ctx context.Context, v volume.Volume, d described, at place, driver csi.Driver, known *nodeSize) error {
	claim, err := k.parts.Objects.Claim(ctx, v.Pod.Namespace, v.Claim)
	if err != nil {
		return err
	}
	has := *claim.Status.Capacity.Storage()
	grown := has.Cmp(known.here(has)) > 0 // another node has done so, and its kubelet has said it for all
	if !mayGrow(claim) && !grown {
		return nil
	}
	pv, err := k.parts.Objects.PersistentVolume(ctx, v.PV.Name)
	if err == nil {
		pv, _, err = translated(pv)
	}
	if err != nil || pv.Spec.CSI.VolumeHandle != d.handle {
		return err
	}
	size, due := growth(claim, pv)
	due = due && mayGrow(claim) // otherwise this node only follows the other one
	switch {
	case !due && !grown:
		return nil
	case !due:
		size = has
	}
	e := expansion{kind: k, v: v, d: d, claim: claim, due: due}
	called, err := e.expand(ctx, at, driver, pv, size)
	switch {
	case err != nil && called:
		return e.failed(ctx, due && known.failed(size, err), err)
	case err != nil || !called:
		return err
	}
	known.set(size)
	message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", d.spec, k.parts.NodeName)
	k.parts.Events.PodEvent(v.Pod.Namespace, v.Pod.Name, string(v.Pod.UID), v1.EventTypeNormal, "FileSystemResizeSuccessful", message)
	k.parts.Events.ClaimEvent(claim.Namespace, claim.Name, string(claim.UID), v1.EventTypeNormal, "FileSystemResizeSuccessful", message)
	if !due {
		return nil
	}
	patch, err := grownPatch(claim, size)
	if err != nil {
		return err
	}
	return k.parts.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
}

// expansion is that of a volume on this node.
type expansion struct {
	kind  *Kind
	v     volume.Volume
	d     described
	claim *v1.PersistentVolumeClaim
	due   bool // this node is the one that writes the claim's status
}

// expand has the driver expand the volume to size. called: the driver was called, and the error is its own.
func (e expansion) expand(ctx context.Context, at place, driver csi.Driver, pv *v1.PersistentVolume, size resource.Quantity) (called bool, err error) {
	k, v, d := e.kind, e.v, e.d
	secrets, err := k.secret(ctx, "NodeExpandSecretRef", pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return false, err
	}
	w := &work{kind: k, driver: driver, d: d, at: at, uid: v.Pod.UID, v: &v}
	if w.held, err = k.turns.Enter(ctx, d.key); err != nil {
		return false, err
	}
	defer w.held.Release()
	if uses, err := k.tree.uses(v.Pod.UID, d.key, d.spec, d.block); err != nil || !uses {
		return false, err // the pod has ended
	}
	request := &pb.NodeExpandVolumeRequest{
		VolumeId: d.handle, VolumePath: at.target, CapacityRange: &pb.CapacityRange{RequiredBytes: size.Value()}, Secrets: secrets,
		VolumeCapability: capability(d, nil, w.multiWriter()),
	}
	if w.stages() {
		request.StagingTargetPath = at.staging
	}
	err = w.held.Do(ctx, func(ctx context.Context) error {
		_, err := driver.Node().NodeExpandVolume(ctx, request)
		return err
	})
	return true, err
}

// failed reports that the driver could not expand the volume, and returns the error. again: the same size has failed here before.
func (e expansion) failed(ctx context.Context, again bool, cause error) error {
	k, v, claim := e.kind, e.v, e.claim
	err := fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", cause) //nolint:staticcheck // upstream's words
	if status.Code(cause) != codes.FailedPrecondition {                              // the driver only expands volumes that are not in use
		message := fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", e.d.spec, err)
		k.parts.Events.PodEvent(v.Pod.Namespace, v.Pod.Name, string(v.Pod.UID), v1.EventTypeWarning, "VolumeResizeFailed", message)
	}
	if !e.due || !final(cause) {
		return err
	}
	patch, wrong := notGrownPatch(claim, err, infeasible(cause) || again && shrunk(claim), k.parts.Clock.Now())
	if wrong == nil && patch != nil {
		wrong = k.parts.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
	}
	return errors.Join(err, wrong)
}

// infeasible reports whether another attempt at the same size must fail too. It is pure.
func infeasible(err error) bool {
	return slices.Contains([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}, status.Code(err))
}

// shrunk reports whether the user has lowered the request since the controller began to expand the volume. The controller can only follow once the
// node has given up. It is pure.
func shrunk(claim *v1.PersistentVolumeClaim) bool {
	allocated, ok := claim.Status.AllocatedResources[v1.ResourceStorage]
	return ok && claim.Spec.Resources.Requests.Storage().Cmp(allocated) < 0
}

// mayGrow reports whether the claim requests more than it has. It is pure.
func mayGrow(claim *v1.PersistentVolumeClaim) bool {
	return claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizeInfeasible &&
		claim.Spec.Resources.Requests.Storage().Cmp(*claim.Status.Capacity.Storage()) > 0
}

// growth returns the size that the controller has given the volume, and whether the node still has to follow. It is pure.
func growth(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (resource.Quantity, bool) {
	size := *pv.Spec.Capacity.Storage()
	if allocated, ok := claim.Status.AllocatedResources[v1.ResourceStorage]; ok && allocated.Cmp(size) < 0 {
		size = allocated
	}
	return size, size.Cmp(*claim.Status.Capacity.Storage()) > 0
}

// resizeConditions are the conditions of a claim that is being expanded.
var resizeConditions = []v1.PersistentVolumeClaimConditionType{
	v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError,
}

// notGrownPatch returns the merge patch that says in a claim's status that a node could not expand the volume; nil: the status says so already. It
// is pure.
func notGrownPatch(claim *v1.PersistentVolumeClaim, cause error, infeasible bool, now time.Time) ([]byte, error) {
	keep, said := []v1.PersistentVolumeClaimCondition{}, false
	for _, c := range claim.Status.Conditions {
		if c.Type != v1.PersistentVolumeClaimNodeResizeError {
			keep = append(keep, c)
		} else if c.Status == v1.ConditionTrue {
			said, keep = true, append(keep, c)
		}
	}
	if said && !infeasible {
		return nil, nil
	}
	if !said {
		keep = append(keep, v1.PersistentVolumeClaimCondition{
			Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
			Message: fmt.Sprintf("failed to expand pvc with %v", cause),
		})
	}
	status := map[string]any{"conditions": keep}
	if infeasible {
		status["allocatedResourceStatuses"] = map[string]any{"storage": v1.PersistentVolumeClaimNodeResizeInfeasible}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": claim.ResourceVersion}, "status": status})
}

// grownPatch returns the merge patch that sets the size in a claim's status. Its resource version makes it fail if the claim has changed. It is
// pure.
func grownPatch(claim *v1.PersistentVolumeClaim, size resource.Quantity) ([]byte, error) {
	keep := []v1.PersistentVolumeClaimCondition{}
	for _, c := range claim.Status.Conditions {
		if !slices.Contains(resizeConditions, c.Type) {
			keep = append(keep, c)
		}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": claim.ResourceVersion},
		"status": map[string]any{
			"capacity": map[string]any{"storage": size.String()}, "conditions": keep, "allocatedResourceStatuses": map[string]any{"storage": nil},
		},
	})
}
