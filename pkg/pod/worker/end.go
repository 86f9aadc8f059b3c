package worker

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// stage is how far the end of a pod has come. It only ever moves forward.
type stage int8

const (
	living   stage = iota // it runs, or is being stopped
	leaving               // nothing runs; its directory is being removed
	vacated               // its directory is gone too; what may be left are its API object, what the engine keeps for logs, its cgroup
	finished              // nothing is left of it anywhere
)

// remains are the facts about the end of a pod. They come in any order; stage says what they amount to.
type remains struct {
	unwanted  bool // no source has the pod any more
	directory bool // is removed
	cgroup    bool // is removed, or there are none
	object    bool // is deleted from the API server, by us
}

// stage derives how far the end has come. engineEmpty says that the engine has nothing of the pod and that no step is in flight.
func (r remains) stage(phase pod.Phase, engineEmpty bool) stage {
	switch {
	case phase != pod.Terminated:
		return living
	case !r.directory:
		return leaving
	case r.unwanted && r.cgroup && engineEmpty:
		return finished
	}
	return vacated
}

// reported says that no status of the pod is wanted any more.
func (r remains) reported() bool { return r.unwanted || r.object }

// stage is how far the end of the worker's pod has come.
func (w *worker) stage() stage {
	if w.observer.never() {
		return living // what the engine has is unknown
	}
	return w.remains.stage(w.phase(), w.observer.current() && w.decision.Done && !w.steps.any())
}

// cleanUp removes what is left of a terminated pod: its directory, then its API object; the cgroup beside them, and with the plan's steps
// what the engine has. What the engine cannot remove yet does not hold up the API.
func (w *worker) cleanUp() {
	if w.phase() != pod.Terminated {
		return
	}
	if !w.remains.cgroup { // holds nothing up: the engine may not be through with the containers' own
		w.jobs.run(removingCgroup, func(ctx context.Context) error { return w.parts.Cgroups.Remove(ctx, w.uid) },
			func(err error) { w.remains.cgroup = err == nil })
	}
	if w.stage() == leaving {
		w.jobs.run(cleaning, func(ctx context.Context) error { return w.parts.Volumes.Clean(ctx, w.uid) },
			func(err error) { w.remains.directory = err == nil })
		return
	}
	w.vacate()
	w.reporter.deleteObject()
}

// vacate wakes those who wait for the pod's end.
func (w *worker) vacate() {
	select {
	case <-w.vacated:
	default:
		close(w.vacated)
	}
}

// remove says that no source wants the pod any more; last is its last version, nil if that is what we have.
func (w *worker) remove(last *v1.Pod) {
	if last != nil {
		w.pod = last
	}
	w.remains.unwanted, w.seen.Memory.End.Remove = true, true
	w.terminate("the pod is gone")
	w.endBy(podspec.StopGrace(w.pod))
}

// terminate moves on from Syncing: what is being started is given up.
func (w *worker) terminate(why string) {
	m := &w.seen.Memory
	m.End.Remove = m.End.Remove || w.pod.DeletionTimestamp != nil
	if m.Phase != pod.Syncing {
		return
	}
	w.log(2, "Terminating pod", "why", why)
	m.Phase = pod.Terminating
	m.End.Deadline = w.now().Add(podspec.StopGrace(w.pod))
	w.steps.drop(plan.Starts)
}

// endBy cuts the time until the kill to what is given now. It never gets longer.
func (w *worker) endBy(grace time.Duration) {
	if deadline := w.now().Add(grace); deadline.Before(w.seen.Memory.End.Deadline) {
		w.seen.Memory.End.Deadline = deadline
	}
}

// end stops the pod against its will. annotations go on the Event.
func (w *worker) end(why pod.Rejection, annotations map[string]string) {
	kind := v1.EventTypeWarning
	if why.Reason == plan.ReasonDeadline {
		kind = v1.EventTypeNormal
	}
	w.parts.Events.AnnotatedEventf(podspec.Reference(w.pod), annotations, kind, why.Reason, "%s", why.Message)
	w.seen.Memory.End.Why = &why
	w.terminate(why.Reason)
}

// evict ends the pod for the good of others, unless it ends already.
func (w *worker) evict(e pod.Eviction) {
	if w.phase() != pod.Syncing {
		return
	}
	w.seen.Memory.End.Disrupted = true
	w.end(e.Rejection, e.Annotations)
	w.endBy(max(e.Grace, time.Second))
}

// preempt ends the pod to make room for a critical one.
func (w *worker) preempt() {
	w.evict(pod.Eviction{Grace: podspec.StopGrace(w.pod), Rejection: pod.Rejection{Reason: "Preempting", Message: "Preempted in order to admit critical pod",
		Disruption: "Pod was preempted by Kubelet to accommodate a critical pod."}})
}

// terminated moves on from Terminating: nothing runs any more.
func (w *worker) terminated() {
	w.log(2, "Pod has terminated")
	w.seen.Memory.Phase = pod.Terminated
	w.steps.drop(func(plan.Step) bool { return true })
	w.parts.Objects.Unregister(w.uid)
	w.publish() // the owner looks at it
	w.owner.released(w.uid)
}

// removeLeftovers removes what a terminated pod has left in the engine, although its logs could still be asked for.
func (w *worker) removeLeftovers() {
	if w.phase() == pod.Terminated {
		w.seen.Memory.End.Remove = true
	}
}

// trim notes which of the pod's containers that have ended are too many for the node.
func (w *worker) trim(ids []string) {
	m := &w.seen.Memory
	for _, run := range m.Runs {
		run.Surplus = false
	}
	for _, id := range ids {
		m.Note(id).Surplus = true
	}
}
