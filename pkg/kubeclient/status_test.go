package kubeclient

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	clocktesting "k8s.io/utils/clock/testing"
)

func testPod(uid string, status v1.PodStatus) *v1.Pod {
	return &v1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, Status: status,
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID("uid-" + uid)}}
}

func TestWriteSendsTheDifference(t *testing.T) {
	api, client := newAPI(t)
	now := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	p := testPod("1", v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBurstable, StartTime: &now, NominatedNodeName: "n",
		ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "c"}},
		Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue}, {Type: "example.com/gate", Status: v1.ConditionTrue},
			{Type: v1.PodReady, Status: v1.ConditionFalse}, {Type: v1.PodResizePending, Status: v1.ConditionTrue}}})
	api.put("ns/pods/p", p)
	p.ResourceVersion = "1"
	w := NewStatusWriter(client)
	running := v1.PodStatus{Phase: v1.PodRunning, QOSClass: v1.PodQOSBurstable,
		Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: "example.com/gate", Status: v1.ConditionFalse}},
		PodIPs:     []v1.PodIP{{IP: "10.0.0.1"}}}
	ctx := briefly(t)
	if err := w.Write(ctx, p, running); err != nil {
		t.Fatal(err)
	}
	want := `{"metadata":{"uid":"uid-1"},"status":{"$setElementOrder/conditions":[{"type":"PodScheduled"},{"type":"example.com/gate"},{"type":"Ready"}],` +
		`"conditions":[{"status":"True","type":"Ready"},{"$patch":"delete","type":"PodResizePending"}],` +
		`"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}`
	if api.patches[0] != want {
		t.Errorf("sent %s\nwant %s", api.patches[0], want)
	}
	// The watch has not delivered the new state yet. Our last write is the known state: repeating it sends nothing, going back does.
	if err := w.Write(ctx, p, running); err != nil || len(api.patches) != 1 {
		t.Errorf("the same status twice: %v %v", err, api.patches[1:])
	}
	if err := w.Write(ctx, p, p.Status); err != nil || len(api.patches) != 2 {
		t.Errorf("the old status again: %v %v", err, api.patches)
	}
	after := current(t, api)
	if after.Status.Phase != v1.PodPending || len(after.Status.PodIPs) != 0 || len(after.Status.Conditions) != 4 {
		t.Errorf("went back to %+v", after.Status)
	}
	// Once the watch delivers something newer, that counts.
	seen := after.DeepCopy()
	seen.ResourceVersion, seen.Status = "9", running
	if err := w.Write(ctx, seen, running); err != nil || len(api.patches) != 2 || len(w.written) != 0 {
		t.Errorf("newer status of the watch: %v %v %v", err, api.patches, w.written)
	}
}

func TestWriteToAnotherPodOfThatName(t *testing.T) {
	api, client := newAPI(t)
	api.put("ns/pods/p", testPod("2", v1.PodStatus{}))
	w := NewStatusWriter(client)
	ctx := briefly(t)
	old := testPod("1", v1.PodStatus{})
	if err := w.Write(ctx, old, v1.PodStatus{Phase: v1.PodFailed}); !apierrors.IsNotFound(err) {
		t.Errorf("another UID: %v", err)
	}
	if err := w.Delete(ctx, old); err != nil || current(t, api).UID != "uid-2" {
		t.Errorf("delete of a pod that was replaced: %v", err)
	}
	if err := w.Delete(ctx, testPod("2", v1.PodStatus{})); err != nil || api.objects["ns/pods/p"] != nil {
		t.Errorf("delete: %v", err)
	}
	if err := w.Delete(ctx, old); err != nil {
		t.Errorf("delete of a pod that is gone: %v", err)
	}
	if err := w.Write(ctx, old, v1.PodStatus{Phase: v1.PodFailed}); !apierrors.IsNotFound(err) {
		t.Errorf("write to a pod that is gone: %v", err)
	}
	api.refuse = []int{500}
	if err := w.Delete(ctx, old); err == nil {
		t.Error("a failed delete counts as done")
	}
}

func TestCreateMirror(t *testing.T) {
	_, client := newAPI(t)
	w := NewStatusWriter(client)
	ctx := briefly(t)
	mirror := testPod("1", v1.PodStatus{})
	mirror.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "h1"}
	for range 2 {
		if err := w.CreateMirror(ctx, mirror); err != nil {
			t.Errorf("same hash: %v", err)
		}
	}
	mirror = mirror.DeepCopy()
	mirror.Annotations[v1.MirrorPodAnnotationKey] = "h2"
	if err := w.CreateMirror(ctx, mirror); err == nil {
		t.Error("another hash is no error")
	}
}

func TestAnswersAreForgotten(t *testing.T) {
	api, client := newAPI(t)
	clock := clocktesting.NewFakeClock(time.Now())
	w := NewStatusWriter(client)
	w.clock = clock
	for _, uid := range []string{"1", "2"} {
		api.put("ns/pods/p", testPod(uid, v1.PodStatus{}))
		if err := w.Write(briefly(t), testPod(uid, v1.PodStatus{}), v1.PodStatus{Phase: v1.PodRunning}); err != nil {
			t.Fatal(err)
		}
		clock.Step(keepWritten + time.Second)
	}
	if _, kept := w.written["uid-2"]; len(w.written) != 1 || !kept {
		t.Errorf("kept %v", w.written)
	}
}

func TestMergeKeepsSharedConditions(t *testing.T) {
	known := v1.PodStatus{ExtendedResourceClaimStatus: &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "x"},
		Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Reason: "scheduler"}, {Type: v1.DisruptionTarget, Reason: "drain"}}}
	got := merge(known, v1.PodStatus{ObservedGeneration: 3})
	if len(got.Conditions) != 2 || got.ExtendedResourceClaimStatus == nil || got.ObservedGeneration != 3 {
		t.Errorf("got %+v", got)
	}
	got = merge(known, v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.DisruptionTarget, Reason: "evicted", Message: "m"}}})
	if len(got.Conditions) != 2 || got.Conditions[1].Reason != "evicted" {
		t.Errorf("got %+v", got)
	}
}

func current(t *testing.T, a *api) *v1.Pod {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	data, err := json.Marshal(a.objects["ns/pods/p"])
	if err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{}
	if err := json.Unmarshal(data, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestStatusPatchIsTheSchemas compares our patches with those made from the schema alone, for every pair of some statuses.
func TestStatusPatchIsTheSchemas(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	container := func(name string, ready bool) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, Ready: ready, Image: "app:1", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}},
			AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}}
	}
	statuses := []v1.PodStatus{
		{},
		{Phase: v1.PodPending, StartTime: &at, ContainerStatuses: []v1.ContainerStatus{{Name: "a", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}},
		{Phase: v1.PodRunning, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}},
			ContainerStatuses: []v1.ContainerStatus{container("a", false), container("b", true)}, InitContainerStatuses: []v1.ContainerStatus{container("i", true)}},
		{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "10.0.0.2"}}, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: v1.PodInitialized}},
			ContainerStatuses: []v1.ContainerStatus{container("b", true), container("a", true)}, EphemeralContainerStatuses: []v1.ContainerStatus{container("e", true)},
			Resources: &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}},
	}
	for i, known := range statuses {
		for j, want := range statuses {
			before, _ := json.Marshal(v1.Pod{Status: known})
			after, _ := json.Marshal(v1.Pod{Status: want})
			plain, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Pod{})
			if err != nil {
				t.Fatal(err)
			}
			var expected map[string]any
			if err := json.Unmarshal(plain, &expected); err != nil {
				t.Fatal(err)
			}
			got, err := statusPatch("u", known, want)
			if len(expected) == 0 {
				if got != nil || err != nil {
					t.Errorf("%d to %d: %s %v", i, j, got, err)
				}
				continue
			}
			expected["metadata"] = map[string]any{"uid": "u"}
			var patch map[string]any
			if err := errors.Join(err, json.Unmarshal(got, &patch)); err != nil || !reflect.DeepEqual(patch, expected) {
				t.Errorf("%d to %d: %v\ngot  %s\nwant %v", i, j, err, got, expected)
			}
		}
	}
}

func BenchmarkStatusPatch(b *testing.B) {
	at := metav1.Now()
	known := v1.PodStatus{Phase: v1.PodPending, StartTime: &at, HostIP: "10.0.0.1", QOSClass: v1.PodQOSBestEffort,
		Conditions:        []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse, LastTransitionTime: at}, {Type: v1.PodInitialized, Status: v1.ConditionTrue, LastTransitionTime: at}},
		ContainerStatuses: []v1.ContainerStatus{{Name: "web", Image: "app:1", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}}
	want := *known.DeepCopy()
	want.Phase, want.Conditions[0].Status, want.PodIP, want.PodIPs = v1.PodRunning, v1.ConditionTrue, "10.1.0.2", []v1.PodIP{{IP: "10.1.0.2"}}
	want.ContainerStatuses[0].State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}}
	for b.Loop() {
		if _, err := statusPatch("u", known, want); err != nil {
			b.Fatal(err)
		}
	}
}
