package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	secrets, err := k.secret(ctx, "NodeExpandSecretRef", pv.Spec.CSI.NodeExpandSecretRef)
	if err != nil {
		return err
	}
	w := &work{kind: k, driver: driver, d: d, at: at, uid: v.Pod.UID, v: &v}
	if w.held, err = k.turns.Enter(ctx, d.key); err != nil {
		return err
	}
	defer w.held.Release()
	if uses, err := k.tree.uses(v.Pod.UID, d.key, d.spec, d.block); err != nil || !uses {
		return err // the pod has ended
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
	if err != nil {
		return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err) //nolint:staticcheck // upstream's words
	}
	known.set(size)
	if !due {
		return nil
	}
	patch, err := grownPatch(claim, size)
	if err != nil {
		return err
	}
	return k.parts.Objects.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
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
