package worker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// In-place resize (KEP-1287). What the spec asks for is desired; what this node has granted is allocated; what the engine holds
// containers to is actual. The Manager keeps what is allocated and gives workers the pod as allocated, so that plans, limits, the
// downward API and QoS follow it by themselves. It survives the agent in the pod's status at the API server, which Status writes from
// it: allocatedResources are the requests, resources the limits.

// allocation is the resources that this node has granted a pod.
type allocation struct {
	pod        *v1.ResourceRequirements
	containers map[string]v1.ResourceRequirements
}

// allocationOf is all that pod asks for.
func allocationOf(pod *v1.Pod) allocation {
	a := allocation{pod: pod.Spec.Resources.DeepCopy(), containers: map[string]v1.ResourceRequirements{}}
	for kind, c := range podspec.Containers(pod) {
		if kind != podspec.Ephemeral {
			a.containers[c.Name] = *c.Resources.DeepCopy()
		}
	}
	return a
}

// recallAllocation is what pod's status says was granted; where it says nothing, what the spec asks for.
func recallAllocation(pod *v1.Pod) allocation {
	a := allocationOf(pod)
	if a.pod != nil && pod.Status.Resources != nil {
		recallList(a.pod.Requests, pod.Status.AllocatedResources)
		recallList(a.pod.Limits, pod.Status.Resources.Limits)
	}
	for kind, c := range podspec.Containers(pod) {
		st := podspec.FindStatus(&pod.Status, kind, c.Name)
		if kind == podspec.Ephemeral || st == nil || st.Resources == nil || st.ContainerID == "" {
			continue
		}
		granted := *c.Resources.DeepCopy()
		granted.Requests, granted.Limits = st.AllocatedResources.DeepCopy(), st.Resources.Limits.DeepCopy()
		a.containers[c.Name] = granted
	}
	return a
}

// recallList takes from known what list names. The status tells of all resources, also of those that only containers ask for.
func recallList(list, known v1.ResourceList) {
	for name := range list {
		if quantity, ok := known[name]; ok {
			list[name] = quantity.DeepCopy()
		}
	}
}

// on is pod as allocated: pod itself where that is what it asks for.
func (a allocation) on(pod *v1.Pod) *v1.Pod {
	same := equality.Semantic.DeepEqual(a.pod, pod.Spec.Resources)
	for kind, c := range podspec.Containers(pod) {
		granted, known := a.containers[c.Name]
		same = same && (kind == podspec.Ephemeral || !known || equality.Semantic.DeepEqual(granted, c.Resources))
	}
	if same {
		return pod
	}
	out := *pod
	out.Spec = *pod.Spec.DeepCopy()
	out.Spec.Resources = a.pod.DeepCopy()
	for kind, c := range podspec.Containers(&out) {
		if granted, known := a.containers[c.Name]; known && kind != podspec.Ephemeral {
			c.Resources = *granted.DeepCopy()
		}
	}
	return &out
}

// resizing is a pod whose newest resources are not granted.
type resizing struct {
	pod.Desired // as the source wants it
	since       time.Time
}

// allocate makes d's pod the pod as allocated, granting a resize if the node has room for it.
func (m *Manager) allocate(d pod.Desired) pod.Desired {
	uid := d.Pod.UID
	d.Resize = nil
	granted, known := m.granted[uid]
	allocated := d.Pod
	if known {
		allocated = granted.on(d.Pod)
	}
	if allocated == d.Pod {
		delete(m.resizes, uid)
		return d
	}
	pending, waits := m.resizes[uid]
	if !waits {
		pending.since = m.parts.Clock.Now()
	}
	pending.Desired = d
	if d.Pod.DeletionTimestamp == nil && !podspec.IsTerminal(d.Pod.Status.Phase) {
		if pending.Resize = m.parts.Admitter.Resize(d.Pod); pending.Resize == nil {
			m.granted[uid] = allocationOf(d.Pod)
			delete(m.resizes, uid)
			m.inbox.put(m.retryResizes) // it may have given something back
			return d
		}
	}
	m.resizes[uid] = pending
	return pod.Desired{Pod: allocated, Mirror: d.Mirror, Resize: pending.Resize}
}

// retryResizes tries again what waits: first what takes nothing more, then by priority, QoS and age, as upstream.
func (m *Manager) retryResizes() {
	if m.ctx.Err() != nil || len(m.resizes) == 0 {
		return
	}
	waiting := slices.Collect(maps.Values(m.resizes))
	rank := func(r resizing) int {
		switch {
		case !m.grows(r.Pod):
			return 0
		case podspec.QOSOf(r.Pod) == v1.PodQOSGuaranteed:
			return 1
		}
		return 2
	}
	priority := func(r resizing) int32 {
		if r.Pod.Spec.Priority == nil {
			return 0
		}
		return *r.Pod.Spec.Priority
	}
	slices.SortFunc(waiting, func(a, b resizing) int {
		return cmp.Or(cmp.Compare(min(rank(a), 1), min(rank(b), 1)), cmp.Compare(priority(b), priority(a)), cmp.Compare(rank(a), rank(b)),
			a.since.Compare(b.since), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	for _, r := range waiting {
		w := m.workers[r.Pod.UID]
		if w == nil || w.leaving {
			continue
		}
		before := r.Resize
		d := m.allocate(r.Desired)
		if d.Resize == nil || before == nil || *d.Resize != *before {
			w.inbox.put(func() { w.desire(d) })
		}
	}
}

// grows says whether pod asks for more CPU or memory than it has.
func (m *Manager) grows(pod *v1.Pod) bool {
	had, wants := helper.PodRequests(m.granted[pod.UID].on(pod), helper.PodResourcesOptions{}), helper.PodRequests(pod, helper.PodResourcesOptions{})
	return wants.Cpu().Cmp(*had.Cpu()) > 0 || wants.Memory().Cmp(*had.Memory()) > 0
}

// recallAllocation takes in what a pod that is new to this agent was granted before. What it asks for beyond that is tried once the
// worker runs.
func (m *Manager) recallAllocation(d pod.Desired) (allocated pod.Desired) {
	granted := recallAllocation(d.Pod)
	m.granted[d.Pod.UID] = granted
	if allocated := granted.on(d.Pod); allocated != d.Pod {
		m.resizes[d.Pod.UID] = resizing{Desired: d, since: m.parts.Clock.Now()}
		m.inbox.put(m.retryResizes)
		out := pod.Desired{Pod: allocated, Mirror: d.Mirror}
		if _, c := podspec.FindCondition(d.Pod.Status.Conditions, v1.PodResizePending); c != nil {
			out.Resize = &pod.Rejection{Reason: c.Reason, Message: c.Message}
		}
		return out
	}
	return d
}

// forgetAllocation is for a pod that holds nothing any more.
func (m *Manager) forgetAllocation(uid types.UID) {
	delete(m.granted, uid)
	delete(m.resizes, uid)
}

// resized takes note of a resize that was granted or has to wait, and tells of it.
func (w *worker) resized(before *v1.Pod, d pod.Desired) {
	old := w.know.Resize
	w.know.Resize = d.Resize
	if w.know.Phase != pod.Syncing {
		return
	}
	if d.Resize != nil && (old == nil || *old != *d.Resize || before.Generation != w.pod.Generation) {
		w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeWarning, "Resize"+d.Resize.Reason,
			resizeMessage("Pod resize "+d.Resize.Reason, w.pod, d.Resize.Message))
	}
	if allocationOf(before).on(w.pod) != w.pod {
		klog.V(2).InfoS("Resizing pod", "pod", klog.KObj(w.pod), "generation", w.pod.Generation)
		w.know.Granted = w.pod.Generation
		for id := range w.know.Updates {
			delete(w.know.Failures, plan.ResizeKey(id))
		}
		clear(w.know.Updates)
		w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeNormal, "ResizeStarted", resizeMessage("Pod resize started", w.pod, ""))
	}
}

// updateSettled takes in how an update of a container ended.
func (w *worker) updateSettled(step pod.Step, err error) {
	if err == nil {
		delete(w.know.Failures, plan.ResizeKey(step.ID))
		w.know.Updates[step.ID] = *step.Resources
		return
	}
	w.know.Updates[step.ID] = podspec.Resources{}
	w.failed(plan.ResizeKey(step.ID), v1.PodReasonError, err.Error(), 0)
	if w.isNews("resize "+step.ID, err.Error()) {
		w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeWarning, "ResizeError", resizeMessage("Pod resize error", w.pod, err.Error()))
	}
}

// tellResize says when a resize has come to its end.
func (w *worker) tellResize(before, after *v1.PodStatus) {
	_, was := podspec.FindCondition(before.Conditions, v1.PodResizeInProgress)
	_, is := podspec.FindCondition(after.Conditions, v1.PodResizeInProgress)
	if was != nil && is == nil && w.know.Phase == pod.Syncing {
		w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeNormal, "ResizeCompleted", resizeMessage("Pod resize completed", w.pod, ""))
	}
}

// resizeMessage is an event's text: what it is about and the resources of all containers as JSON, the form that upstream's has.
func resizeMessage(what string, pod *v1.Pod, problem string) string {
	type row struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	var summary struct {
		InitContainers []row  `json:"initContainers,omitempty"`
		Containers     []row  `json:"containers,omitempty"`
		Generation     int64  `json:"generation"`
		Error          string `json:"error,omitempty"`
	}
	summary.Generation, summary.Error = pod.Generation, problem
	for _, c := range pod.Spec.InitContainers {
		summary.InitContainers = append(summary.InitContainers, row{c.Name, c.Resources})
	}
	for _, c := range pod.Spec.Containers {
		summary.Containers = append(summary.Containers, row{c.Name, c.Resources})
	}
	data, err := json.Marshal(summary)
	if err != nil {
		return what
	}
	return fmt.Sprintf("%s: %s", what, data)
}
