package grow

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// growingPatch returns the merge patch that says in a claim's status that the node has begun (KEP-1790). Its resource version makes it fail if the
// claim has changed. It is pure.
func growingPatch(claim *v1.PersistentVolumeClaim) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"allocatedResourceStatuses": map[string]any{"storage": v1.PersistentVolumeClaimNodeResizeInProgress}},
	})
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
