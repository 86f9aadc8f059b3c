// Package worker runs the node's pods: a Manager that knows which should be here, and for each a worker that brings it there.
//
//	pod.Update -> Manager -> worker: plan.Plan(pod, seen, now) -> steps -> pod.Runtime, Volumes, Attacher
//	                                 plan.Status(pod, seen, now) -> pod.StatusWriter
//
// A worker owns all that is known about its pod; others read Manager.Snapshot. It decides nothing that package plan can decide.
package worker

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// worker owns one pod from its first sight to its last trace. Its loop never blocks: whatever may be slow runs as an operation and
// comes back through the inbox. All fields below inbox belong to the loop.
type worker struct {
	cfg   *Config
	parts *Parts
	uid   types.UID
	// released is called once, from the loop, when nothing of the pod runs any more; ended when the loop has ended.
	released, ended func(*worker)
	// agentStart is when this agent began: probes of containers that are older start with a random delay.
	agentStart time.Time
	view       atomic.Pointer[pod.View]
	inbox      *inbox
	crew       crew
	leaving    bool // the Manager's: it has told the worker that no source wants the pod

	ctx    context.Context
	pod    *v1.Pod
	mirror *v1.Pod // of a static pod, as the API server has it; nil: not there
	gone   bool    // no source wants the pod any more
	know   plan.Knowledge

	observed  pod.Observed
	observing bool
	stale     bool      // observed is older than something that happened
	taken     int       // finished when observed was taken; -1: never
	finished  int       // steps that have ended
	lastEnd   time.Time // when the last of them did
	// cgroup is what the pod's cgroup was held to by the last step, or as last looked at; nil: to be looked at. Nobody else changes it.
	cgroup *podspec.Resources

	ops      map[*operation]struct{}
	probes   map[probeKey]*probeRun
	chores   map[string]*chore
	sent     *v1.PodStatus // what the API server has of us; nil: to be written
	unsent   time.Time     // since when a status waits for a start to end; zero: none does
	said     map[string]string
	next     time.Time
	timing   timing
	endings  endings
	decision plan.Decision
	// volumesDue says that the volumes' contents may be out of date.
	volumesDue bool
	final      bool // know.Last is the status that stays
	cleaned    bool
	unlimited  bool // its cgroup is gone
	deleted    bool // the API object is gone at our request
	over       bool
	vacated    chan struct{} // closed when nothing of the pod runs and its volumes are gone, or the loop has ended
}

// operation is a step in flight.
type operation struct {
	step   pod.Step
	cancel context.CancelFunc
	since  time.Time
	cgroup *podspec.Resources // what the pod's cgroup is held to since it was made; read when the step has ended
	asIs   bool               // the pod's cgroup was good for it
	// dropped says that we cancelled it ourselves: its failure means nothing.
	dropped bool
}

func newWorker(cfg *Config, parts *Parts, d pod.Desired) *worker {
	w := &worker{
		cfg: cfg, parts: parts, uid: d.Pod.UID, pod: d.Pod, mirror: d.Mirror, inbox: newInbox(), stale: true, taken: -1,
		ops: map[*operation]struct{}{}, probes: map[probeKey]*probeRun{}, chores: map[string]*chore{}, said: map[string]string{}, vacated: make(chan struct{}),
	}
	w.know = plan.Knowledge{
		Platform: cfg.Platform, Last: *d.Pod.Status.DeepCopy(), Stops: map[string]time.Time{}, Replace: map[string]bool{},
		Delays: map[string]time.Duration{}, Failures: map[string]plan.Failure{}, Updates: map[string]podspec.Resources{},
	}
	w.know.Resize, w.know.Dead = d.Resize, cfg.Dead
	if d.Mirror != nil && d.Mirror.Annotations[v1.MirrorPodAnnotationKey] == podspec.MirrorHash(d.Pod) {
		w.know.Last = *d.Mirror.Status.DeepCopy()
	}
	w.know.Recall(d.Pod)
	w.timing = newTiming(parts.Timing, w.know.Last.Phase, parts.Clock.Now())
	if podspec.IsTerminal(w.know.Last.Phase) && !podspec.IsStatic(d.Pod) {
		w.terminate("the pod has ended")
	}
	if d.Pod.DeletionTimestamp != nil {
		w.terminate("the pod is deleted")
	}
	w.publish()
	return w
}

// run is the loop. It returns when nothing is left to do for the pod, or with ctx, and then waits for its operations.
func (w *worker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	w.ctx = ctx
	defer w.ended(w)
	defer w.vacate()
	defer w.crew.Wait()
	defer cancel()
	timer := w.parts.Clock.NewTimer(0)
	defer timer.Stop()
	for !w.over {
		select {
		case <-ctx.Done():
			return
		case <-w.inbox.wake:
		case <-timer.C():
		}
		w.next = time.Time{}
		if err := guarded(func() error { w.inbox.drain(); w.turn(); return nil }); err != nil {
			w.lookAt(w.parts.Clock.Now().Add(10 * time.Second))
		}
		timer.Stop()
		select {
		case <-timer.C():
		default:
		}
		wait := time.Duration(1<<62 - 1)
		if !w.next.IsZero() {
			wait = max(0, w.next.Sub(w.parts.Clock.Now()))
		}
		timer.Reset(wait)
	}
}

func (w *worker) lookAt(t time.Time) {
	if w.next.IsZero() || t.Before(w.next) {
		w.next = t
	}
}

// turn looks at everything once and sets off what is to be done.
func (w *worker) turn() {
	w.observe()
	if w.taken == w.finished {
		w.know.HostIPs = w.cfg.HostIPs()
		w.reckon()
		if phase := w.know.Phase; w.act() != phase {
			w.reckon()
		}
		if len(w.ops) == 0 {
			w.timing.rest(w.parts.Clock.Now())
		}
	}
	w.refreshVolumes()
	w.report()
	w.chase()
	w.publish()
}

// observe asks the engine when what we have of it may be out of date. No plan is made before the answer is there.
func (w *worker) observe() {
	if w.observing || !w.stale && w.taken == w.finished || w.held("observe") || w.taken == w.finished && w.starting() {
		return
	}
	w.observing, w.stale = true, false
	at, p, cgroup := w.finished, w.pod, w.cgroup
	var observed pod.Observed
	w.crew.do(w.ctx, func(ctx context.Context) (err error) {
		if observed, err = w.parts.Runtime.Observe(ctx, w.uid); err == nil && w.parts.Cgroups != nil && cgroup == nil {
			cgroup, err = w.parts.Cgroups.Limits(p)
		}
		observed.Cgroup = cgroup
		w.parts.complete(p, &observed)
		return err
	}, func(err error) {
		w.inbox.put(func() {
			w.observing = false
			if err != nil {
				w.stale = true
				klog.V(1).InfoS("The engine does not tell the state of a pod", "pod", klog.KObj(w.pod), "err", err)
				w.retry("observe", 10*time.Second)
				return
			}
			w.succeeded("observe")
			w.observed, w.taken = observed, at
			w.parts.expose(w.uid, observed)
			w.tellEndings()
			if at == w.finished {
				w.cgroup = observed.Cgroup
			}
		})
	})
}

// startPatience is how long what a start does to the engine's containers is not looked at before the start has ended.
const startPatience = 2 * time.Second

// starting says whether a step that starts something has just begun: most news of the pod is then of that step, and at its end everything
// is looked at.
func (w *worker) starting() bool {
	for op := range w.ops {
		until := op.since.Add(startPatience)
		if op.starts() && until.After(w.parts.Clock.Now()) {
			w.lookAt(until)
			return true
		}
	}
	return false
}

// launching says whether a step that starts something is under way.
func (w *worker) launching() bool {
	for op := range w.ops {
		if op.starts() {
			return true
		}
	}
	return false
}

func (op *operation) starts() bool {
	return op.step.Action == pod.CreateSandbox || op.step.Action == pod.AttachNetwork || op.step.Action == pod.StartContainer
}

// hint says that the engine's containers may have changed.
func (w *worker) hint() {
	w.stale = true
	w.dropChore("observe")
}

// seen takes in an observation that was begun at began for all pods at once. It counts only if no step was in flight or has ended since.
func (w *worker) seen(observed pod.Observed, began time.Time) {
	if observed.Unclear || len(w.ops) > 0 || w.observing || !w.lastEnd.Before(began) {
		return
	}
	observed.Cgroup = w.observed.Cgroup // which nobody but our steps changes
	w.parts.complete(w.pod, &observed)
	w.observed, w.taken, w.stale = observed, w.finished, false
	w.parts.expose(w.uid, observed)
	w.tellEndings()
}

// desire takes in a new version of the pod or of its mirror.
func (w *worker) desire(d pod.Desired) {
	before := w.pod
	w.pod, w.mirror = d.Pod, d.Mirror
	w.resized(before, d)
	known := &w.pod.Status
	if w.mirror != nil {
		known = &w.mirror.Status
	}
	if w.sent != nil && (podspec.IsStatic(w.pod) && w.mirror == nil || !equality.Semantic.DeepEqual(w.sent, known)) {
		w.sent = nil // an echo of an older write, or somebody else's: StatusWriter knows which, and sends only what differs
	}
	w.dropChore("status")
	w.dropChore("mirror")
	switch {
	case w.pod.DeletionTimestamp != nil:
		w.terminate("the pod is deleted")
		w.shorten()
	case podspec.IsTerminal(w.pod.Status.Phase) && !podspec.IsStatic(w.pod):
		w.terminate("the pod has ended")
	case w.know.Phase == pod.Syncing && !sameWorkload(before, w.pod):
		w.retryStarts()
		w.register()
		w.volumesDue = true
	}
}

// sameWorkload says whether nothing changed that containers or volumes can see.
func sameWorkload(a, b *v1.Pod) bool {
	return a.Generation == b.Generation && reflect.DeepEqual(a.Spec, b.Spec) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// remove says that no source wants the pod any more; last is its last version, nil if that is what we have.
func (w *worker) remove(last *v1.Pod) {
	if last != nil {
		w.pod = last
	}
	w.gone, w.know.Remove = true, true
	w.terminate("the pod is gone")
	w.shorten()
}

// terminate moves on from Syncing: what is being started is given up.
func (w *worker) terminate(why string) {
	w.know.Remove = w.know.Remove || w.pod.DeletionTimestamp != nil
	if w.know.Phase != pod.Syncing {
		return
	}
	klog.V(2).InfoS("Terminating pod", "pod", klog.KObj(w.pod), "why", why)
	w.know.Phase = pod.Terminating
	w.know.Deadline = w.parts.Clock.Now().Add(podspec.StopGrace(w.pod))
	for op := range w.ops {
		if op.starts() {
			op.drop()
		}
	}
}

// shorten cuts the time until the kill to what the pod says now. It never gets longer.
func (w *worker) shorten() {
	if deadline := w.parts.Clock.Now().Add(podspec.StopGrace(w.pod)); deadline.Before(w.know.Deadline) {
		w.know.Deadline = deadline
	}
}

func (op *operation) drop() {
	op.dropped = true
	op.cancel()
}

// act plans and sets off the steps, and moves on to the next phase, which it returns.
func (w *worker) act() pod.Phase {
	now := w.parts.Clock.Now()
	for {
		w.know.Busy = w.busy()
		w.forget()
		w.decision = plan.Plan(w.pod, w.observed, w.know, now)
		d := w.decision
		if !d.Next.IsZero() {
			w.lookAt(d.Next)
		}
		for _, id := range d.Replace {
			w.know.Replace[id] = true
		}
		w.tellBackOff(d.Waits)
		for _, step := range d.Steps {
			w.launch(step, now)
		}
		switch {
		case d.End != nil:
			w.end(*d.End, nil)
		case w.know.Phase == pod.Syncing && d.Done:
			w.terminate("all containers have ended")
		case w.know.Phase == pod.Terminating && d.Done:
			w.terminated()
		default:
			w.watchProbes(now)
			return w.know.Phase
		}
	}
}

// end stops the pod against its will. annotations go on the Event.
func (w *worker) end(why pod.Rejection, annotations map[string]string) {
	kind := v1.EventTypeWarning
	if why.Reason == plan.ReasonDeadline {
		kind = v1.EventTypeNormal
	}
	w.parts.Events.AnnotatedEventf(podspec.Reference(w.pod), annotations, kind, why.Reason, "%s", why.Message)
	w.know.Ended = &why
	w.terminate(why.Reason)
}

// evict ends the pod for the sake of others, unless it ends already.
func (w *worker) evict(e pod.Eviction) {
	if w.know.Phase != pod.Syncing {
		return
	}
	w.know.Disrupted = true
	w.end(e.Rejection, e.Annotations)
	if deadline := w.parts.Clock.Now().Add(max(e.Grace, time.Second)); deadline.Before(w.know.Deadline) {
		w.know.Deadline = deadline
	}
}

// preempt ends the pod to make room for a critical one.
func (w *worker) preempt() {
	w.evict(pod.Eviction{Grace: podspec.StopGrace(w.pod), Rejection: pod.Rejection{Reason: "Preempting", Message: "Preempted in order to admit critical pod",
		Disruption: "Pod was preempted by Kubelet to accommodate a critical pod."}})
}

// terminated moves on from Terminating: nothing runs any more.
func (w *worker) terminated() {
	klog.V(2).InfoS("Pod has terminated", "pod", klog.KObj(w.pod))
	w.know.Phase = pod.Terminated
	for op := range w.ops {
		op.drop()
	}
	w.parts.Objects.Unregister(w.uid)
	w.publish() // who is told looks
	w.released(w)
}

// vacate lets those go on who wait for the pod's end.
func (w *worker) vacate() {
	select {
	case <-w.vacated:
	default:
		close(w.vacated)
	}
}

// sweep removes what a terminated pod has left in the engine, although somebody could still ask for its logs.
func (w *worker) sweep() {
	if w.know.Phase == pod.Terminated {
		w.know.Remove = true
	}
}

// busy lists the steps in flight, those first that began first.
func (w *worker) busy() []pod.Step {
	ops := slices.SortedFunc(maps.Keys(w.ops), func(a, b *operation) int { return a.since.Compare(b.since) })
	var steps []pod.Step
	for _, op := range ops {
		steps = append(steps, op.step)
	}
	return steps
}

// forget drops what is known of containers that do not exist any more.
func (w *worker) forget() {
	live := map[string]bool{"": true, plan.ResizeKey(""): true}
	for _, c := range w.observed.Containers {
		live[c.ID], live[plan.ResizeKey(c.ID)] = true, true
	}
	for _, s := range w.observed.Sandboxes {
		live[s.ID] = true
	}
	for _, c := range podspec.Containers(w.pod) {
		live[c.Name] = true
	}
	dead := func(id string) bool { return !live[id] }
	maps.DeleteFunc(w.know.Hooks, func(id string, _ plan.Hooks) bool { return dead(id) })
	maps.DeleteFunc(w.know.Probes, func(id string, _ plan.Verdict) bool { return dead(id) })
	maps.DeleteFunc(w.know.Stops, func(id string, _ time.Time) bool { return dead(id) })
	maps.DeleteFunc(w.know.Surplus, func(id string, _ bool) bool { return dead(id) })
	maps.DeleteFunc(w.know.Replace, func(id string, _ bool) bool { return dead(id) })
	maps.DeleteFunc(w.know.Updates, func(id string, _ podspec.Resources) bool { return dead(id) })
	maps.DeleteFunc(w.know.Failures, func(id string, _ plan.Failure) bool { return dead(id) })
}

// register has the objects watched that the pod refers to.
func (w *worker) register() {
	if w.know.Phase == pod.Syncing {
		w.parts.Objects.Register(w.pod)
	}
}

// retryStarts has starts that failed tried again now, but for those that wait for a registry.
func (w *worker) retryStarts() {
	for name, f := range w.know.Failures {
		if f.Reason != "ImagePullBackOff" && f.Reason != "ErrImagePull" {
			f.Until = time.Time{}
			w.know.Failures[name] = f
		}
	}
}

// objectsChanged says that a Secret or ConfigMap of the pod changed.
func (w *worker) objectsChanged() {
	w.retryStarts()
	w.volumesDue = true
}

// resync is the slow timer: volumes are brought up to date (tokens are renewed) where nothing else asked for it.
func (w *worker) resync() { w.volumesDue = true }
