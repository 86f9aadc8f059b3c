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
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// In-place resize (KEP-1287). Desired is what the spec requests, allocated is what this node has granted, and actual is what the engine
// enforces. The Manager keeps the allocated resources and gives workers the pod as allocated, so that plans, limits, the downward API and
// QoS follow automatically. The pod's status on the API server preserves them across agent restarts: allocatedResources has the requests,
// resources the limits.

// allocation is the resources that this node has granted a pod.
type allocation struct {
	pod        *v1.ResourceRequirements
	containers map[string]v1.ResourceRequirements
}

// allocationOf is everything that pod requests.
func allocationOf(pod *v1.Pod) allocation {
	a := allocation{pod: pod.Spec.Resources.DeepCopy(), containers: map[string]v1.ResourceRequirements{}}
	for kind, c := range podspec.Containers(pod) {
		if kind != podspec.Ephemeral {
			a.containers[c.Name] = *c.Resources.DeepCopy()
		}
	}
	return a
}

// recallAllocation is what was granted according to pod's status, or what the spec requests where the status has nothing.
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

// recallList copies the values of list's resources from known. The status has all resources, including those that only containers request.
func recallList(list, known v1.ResourceList) {
	for name := range list {
		if quantity, ok := known[name]; ok {
			list[name] = quantity.DeepCopy()
		}
	}
}

// on returns pod as allocated: pod itself if it requests exactly that.
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
	pod.Desired // as its source wants it
	since       time.Time
}

// allocations are the resources granted to pods, and the pods that wait for more. Only the Manager's loop uses them.
type allocations struct {
	admitter pod.Admitter
	clock    clock.PassiveClock
	granted  map[types.UID]allocation // all admitted pods with a worker
	pending  map[types.UID]resizing
}

func newAllocations(admitter pod.Admitter, clk clock.PassiveClock) *allocations {
	return &allocations{admitter: admitter, clock: clk, granted: map[types.UID]allocation{}, pending: map[types.UID]resizing{}}
}

// allocate replaces d's pod by the pod as allocated, and grants a resize if the node has room. granted means that it did, which may have
// freed resources.
func (a *allocations) allocate(d pod.Desired) (allocated pod.Desired, granted bool) {
	uid := d.Pod.UID
	d.Resize = nil
	has, known := a.granted[uid]
	desired := d.Pod
	if known {
		desired = has.on(d.Pod)
	}
	if desired == d.Pod {
		delete(a.pending, uid)
		return d, false
	}
	pending, waits := a.pending[uid]
	if !waits {
		pending.since = a.clock.Now()
	}
	pending.Desired = d
	if d.Pod.DeletionTimestamp == nil && !podspec.IsTerminal(d.Pod.Status.Phase) {
		if pending.Resize = a.admitter.Resize(d.Pod); pending.Resize == nil {
			a.granted[uid] = allocationOf(d.Pod)
			delete(a.pending, uid)
			return d, true
		}
	}
	a.pending[uid] = pending
	return pod.Desired{Pod: desired, Mirror: d.Mirror, Resize: pending.Resize}, false
}

// waiting lists the resizes to retry: first those that need nothing more, then by priority, QoS and age, as in upstream.
func (a *allocations) waiting() []resizing {
	waiting := slices.Collect(maps.Values(a.pending))
	rank := func(r resizing) int {
		switch {
		case !a.grows(r.Pod):
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
	return waiting
}

// grows reports whether a pod requests more CPU or memory than it has.
func (a *allocations) grows(desired *v1.Pod) bool {
	had, wants := helper.PodRequests(a.granted[desired.UID].on(desired), helper.PodResourcesOptions{}), helper.PodRequests(desired, helper.PodResourcesOptions{})
	return wants.Cpu().Cmp(*had.Cpu()) > 0 || wants.Memory().Cmp(*had.Memory()) > 0
}

// recall restores from its status what was granted to a pod that is new to this agent. pending means that it requests more, to be tried
// once its worker runs.
func (a *allocations) recall(d pod.Desired) (allocated pod.Desired, pending bool) {
	granted := recallAllocation(d.Pod)
	a.granted[d.Pod.UID] = granted
	desired := granted.on(d.Pod)
	if desired == d.Pod {
		return d, false
	}
	a.pending[d.Pod.UID] = resizing{Desired: d, since: a.clock.Now()}
	out := pod.Desired{Pod: desired, Mirror: d.Mirror}
	if _, c := podspec.FindCondition(d.Pod.Status.Conditions, v1.PodResizePending); c != nil {
		out.Resize = &pod.Rejection{Reason: c.Reason, Message: c.Message}
	}
	return out, true
}

// forget must be called when a pod holds nothing any more.
func (a *allocations) forget(uid types.UID) {
	delete(a.granted, uid)
	delete(a.pending, uid)
}

// allocate is allocations.allocate; it retries the waiting resizes if resources were freed.
func (m *Manager) allocate(d pod.Desired) pod.Desired {
	allocated, granted := m.allocations.allocate(d)
	if granted {
		m.inbox.put(m.retryResizes)
	}
	return allocated
}

// retryResizes retries the waiting resizes.
func (m *Manager) retryResizes() {
	if m.ctx.Err() != nil || len(m.allocations.pending) == 0 {
		return
	}
	for _, r := range m.allocations.waiting() {
		w := m.worker(r.Pod.UID)
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

// resized records that a resize was granted or must wait, and sends an Event.
func (w *worker) resized(before *v1.Pod, d pod.Desired) {
	resize := &w.seen.Memory.Resize
	old := resize.Pending
	resize.Pending = d.Resize
	if w.phase() != pod.Syncing {
		return
	}
	if d.Resize != nil && (old == nil || *old != *d.Resize || before.Generation != w.pod.Generation) {
		w.event(v1.EventTypeWarning, "Resize"+d.Resize.Reason, resizeMessage("Pod resize "+d.Resize.Reason, w.pod, d.Resize.Message))
	}
	if allocationOf(before).on(w.pod) == w.pod {
		return
	}
	w.log(2, "Resizing pod", "generation", w.pod.Generation)
	resize.Granted, resize.Told = w.pod.Generation, podspec.Resources{}
	for _, run := range w.seen.Memory.Runs {
		run.Told = podspec.Resources{}
	}
	maps.DeleteFunc(w.seen.Memory.Retries, func(key plan.Key, _ plan.Retry) bool { return key.IsUpdate() })
	w.event(v1.EventTypeNormal, "ResizeStarted", resizeMessage("Pod resize started", w.pod, ""))
}

// updated records the result of a limit change of a container, or of the pod if ID is "".
func (s *steps) updated(of plan.Subject, to podspec.Resources, err error) {
	if err != nil {
		to = podspec.Resources{}
	}
	if of.ID == "" {
		s.seen.Memory.Resize.Told = to
	} else {
		s.seen.Memory.Note(of.ID).Told = to
	}
	key := plan.UpdateKey(of.ID)
	if err == nil {
		s.succeeded(key)
		return
	}
	s.failed(key, v1.PodReasonError, err.Error(), 0)
	if s.isNews("resize "+of.ID, err.Error()) {
		s.event(v1.EventTypeWarning, "ResizeError", resizeMessage("Pod resize error", s.pod, err.Error()))
	}
}

// resizeCompleted sends an Event when a resize is complete.
func (c *core) resizeCompleted(before, after *v1.PodStatus) {
	_, was := podspec.FindCondition(before.Conditions, v1.PodResizeInProgress)
	_, is := podspec.FindCondition(after.Conditions, v1.PodResizeInProgress)
	if was != nil && is == nil && c.phase() == pod.Syncing {
		c.event(v1.EventTypeNormal, "ResizeCompleted", resizeMessage("Pod resize completed", c.pod, ""))
	}
}

// resizeMessage is an Event's text in upstream's form: the topic, then the resources of all containers as JSON.
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
