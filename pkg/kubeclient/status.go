package kubeclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
)

// StatusWriter writes pod statuses to the API server; it implements pod.StatusWriter.
type StatusWriter struct {
	client clientset.Interface
	clock  clock.PassiveClock

	mu sync.Mutex
	// written is the API server's answers to our last writes. Until the watch delivers them, the pods' own statuses are older.
	written map[types.UID]written
}

type written struct {
	version string
	status  v1.PodStatus
	at      time.Time
}

// keepWritten is how long an answer is kept for a pod whose status is no longer written. The watch has delivered it long before.
const keepWritten = 10 * time.Minute

// NewStatusWriter returns a StatusWriter.
func NewStatusWriter(client clientset.Interface) *StatusWriter {
	return &StatusWriter{client: client, clock: clock.RealClock{}, written: map[types.UID]written{}}
}

// Write implements pod.StatusWriter. It sends only differences from the newest known status, or nothing. It does not change others'
// conditions or fields that the control plane sets.
func (w *StatusWriter) Write(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	known := w.known(pod)
	patch, err := statusPatch(pod.UID, known, merge(known, status))
	if err != nil || patch == nil {
		return err
	}
	updated, err := w.client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsConflict(err) {
		err = w.replaced(ctx, pod, err)
	}
	if err != nil {
		if apierrors.IsNotFound(err) {
			w.forget(pod.UID)
		}
		return err
	}
	w.remember(updated)
	return nil
}

// Delete implements pod.StatusWriter. A conflict concerns the UID: the name belongs to another pod now, and ours is gone.
func (w *StatusWriter) Delete(ctx context.Context, pod *v1.Pod) error {
	now := int64(0)
	err := w.client.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	w.forget(pod.UID)
	return nil
}

// CreateMirror implements pod.StatusWriter. mirror must have the annotations kubernetes.io/config.mirror and .hash and our Node as its
// controller, or the API server refuses it. An older mirror pod of the same name causes the API's AlreadyExists: delete it first.
func (w *StatusWriter) CreateMirror(ctx context.Context, mirror *v1.Pod) error {
	_, err := w.client.Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, getErr := w.client.Pods(mirror.Namespace).Get(ctx, mirror.Name, metav1.GetOptions{})
	if getErr != nil {
		return fmt.Errorf("cannot compare mirror pod %s/%s with the one that exists: %w", mirror.Namespace, mirror.Name, getErr)
	}
	if hash := mirror.Annotations[v1.MirrorPodAnnotationKey]; hash != existing.Annotations[v1.MirrorPodAnnotationKey] || existing.DeletionTimestamp != nil {
		return err
	}
	return nil
}

// replaced finds out whether a conflict means that another pod has taken the name.
func (w *StatusWriter) replaced(ctx context.Context, pod *v1.Pod, conflict error) error {
	existing, err := w.client.Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err == nil && existing.UID != pod.UID {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod.Name)
	}
	if apierrors.IsNotFound(err) {
		return err
	}
	return conflict
}

// known is the newest known status of pod.
func (w *StatusWriter) known(pod *v1.Pod) v1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.written[pod.UID]
	if !ok {
		return pod.Status
	}
	if order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, last.version); err == nil && order >= 0 {
		delete(w.written, pod.UID)
		return pod.Status
	}
	return last.status
}

func (w *StatusWriter) remember(updated *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	for uid, old := range w.written {
		if now.Sub(old.at) > keepWritten {
			delete(w.written, uid)
		}
	}
	w.written[updated.UID] = written{updated.ResourceVersion, updated.Status, now}
}

func (w *StatusWriter) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.written, uid)
}

// ours are the pod conditions that a kubelet owns; shared are those that it may set but never removes.
var (
	ours = []v1.PodConditionType{
		v1.PodReady, v1.PodInitialized, v1.ContainersReady, v1.PodReadyToStartContainers,
		v1.PodResizeInProgress, v1.PodResizePending, v1.AllContainersRestarting,
	}
	shared = []v1.PodConditionType{v1.PodScheduled, v1.DisruptionTarget}
)

// merge returns status with others' parts copied from known.
func merge(known, status v1.PodStatus) v1.PodStatus {
	out := *status.DeepCopy()
	out.Conditions = nil
	// Keep known's order: a different order alone would cause a patch.
	for _, c := range known.Conditions {
		next := find(status.Conditions, c.Type)
		switch {
		case next != nil && (slices.Contains(ours, c.Type) || slices.Contains(shared, c.Type)):
			out.Conditions = append(out.Conditions, *next)
		case !slices.Contains(ours, c.Type):
			out.Conditions = append(out.Conditions, c)
		}
	}
	for _, c := range status.Conditions {
		if find(out.Conditions, c.Type) == nil && (slices.Contains(ours, c.Type) || slices.Contains(shared, c.Type)) {
			out.Conditions = append(out.Conditions, c)
		}
	}
	out.ResourceClaimStatuses = known.ResourceClaimStatuses
	out.ExtendedResourceClaimStatus = known.ExtendedResourceClaimStatus
	out.NodeAllocatableResourceClaimStatuses = known.NodeAllocatableResourceClaimStatuses
	out.NominatedNodeName = known.NominatedNodeName
	if out.QOSClass == "" {
		out.QOSClass = known.QOSClass
	}
	if out.StartTime == nil {
		out.StartTime = known.StartTime
	}
	return out
}

func find(conditions []v1.PodCondition, kind v1.PodConditionType) *v1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// statusPatch is the strategic merge patch from known to want, with the UID as a precondition; nil if they are equal. The API replaces the
// container lists, most of a status, as a whole (listType=atomic): they are compared as text, the rest by its schema.
func statusPatch(uid types.UID, known, want v1.PodStatus) ([]byte, error) {
	lists := map[string]json.RawMessage{}
	for name, field := range map[string]func(*v1.PodStatus) *[]v1.ContainerStatus{
		"containerStatuses":          func(s *v1.PodStatus) *[]v1.ContainerStatus { return &s.ContainerStatuses },
		"initContainerStatuses":      func(s *v1.PodStatus) *[]v1.ContainerStatus { return &s.InitContainerStatuses },
		"ephemeralContainerStatuses": func(s *v1.PodStatus) *[]v1.ContainerStatus { return &s.EphemeralContainerStatuses },
	} {
		before, after := field(&known), field(&want)
		if err := diffContainers(lists, name, *before, *after); err != nil {
			return nil, err
		}
		*before, *after = nil, nil
	}
	before, err := json.Marshal(v1.Pod{Status: known})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the known status: %w", err)
	}
	after, err := json.Marshal(v1.Pod{Status: want})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the new status: %w", err)
	}
	patch := struct {
		Metadata map[string]types.UID       `json:"metadata"`
		Status   map[string]json.RawMessage `json:"status"`
	}{Metadata: map[string]types.UID{"uid": uid}}
	if !bytes.Equal(before, after) {
		diff, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
		if err != nil {
			return nil, fmt.Errorf("cannot compare statuses: %w", err)
		}
		if err := json.Unmarshal(diff, &patch); err != nil {
			return nil, fmt.Errorf("cannot read the difference of statuses: %w", err)
		}
	}
	if patch.Status == nil {
		patch.Status = lists
	} else {
		maps.Copy(patch.Status, lists)
	}
	if len(patch.Status) == 0 {
		return nil, nil
	}
	return json.Marshal(patch)
}

// diffContainers adds after to lists if it differs from before. JSON's null removes a list.
func diffContainers(lists map[string]json.RawMessage, name string, before, after []v1.ContainerStatus) error {
	if len(before) == 0 && len(after) == 0 {
		return nil
	}
	old, err := json.Marshal(before)
	if err != nil {
		return fmt.Errorf("cannot encode the known %s: %w", name, err)
	}
	list, err := json.Marshal(after)
	if err != nil {
		return fmt.Errorf("cannot encode the new %s: %w", name, err)
	}
	if len(after) == 0 {
		list = []byte("null")
	}
	if len(before) == 0 || !bytes.Equal(old, list) {
		lists[name] = list
	}
	return nil
}
