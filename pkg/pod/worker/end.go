package worker

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// stage is the progress of a pod's end. It only moves forward.
type stage int8

const (
	living   stage = iota // it runs or is being stopped
	leaving               // nothing runs; its directory is being removed
	vacated               // its directory is removed; its API object, exited containers kept for their logs, and its cgroup may remain
	finished              // nothing of it remains
)

// remains are facts about the end of a pod. They arrive in any order; stage derives the progress from them.
type remains struct {
	unwanted  bool // no source wants the pod any more
	directory bool // it is removed
	cgroup    bool // it is removed, or there are no cgroups
	object    bool // we deleted it from the API server
}

// stage derives the progress of the end. engineEmpty means that the engine has nothing of the pod and no step is in flight.
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

// reported means that the pod's status is no longer needed.
func (r remains) reported() bool { return r.unwanted || r.object }

// stage is the progress of the end of the worker's pod.
func (w *worker) stage() stage {
	if w.observer.never() {
		return living // the engine's state is unknown
	}
	return w.remains.stage(w.phase(), w.observer.current() && w.decision.Done && !w.steps.any())
}

// cleanUp removes what a terminated pod left: its directory, then its API object, and its cgroup at the same time. The plan's steps remove
// its containers. A container that the engine cannot remove yet does not delay the API object.
func (w *worker) cleanUp() {
	if w.phase() != pod.Terminated {
		return
	}
	if !w.remains.cgroup { // blocks nothing else: the engine may still use the containers' cgroups
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

// remove records that no source wants the pod any more. last is its last version, or nil if the worker has it.
func (w *worker) remove(last *v1.Pod) {
	if last != nil {
		w.pod = last
	}
	w.remains.unwanted, w.seen.Memory.End.Remove = true, true
	w.terminate("the pod is gone")
	w.endBy(podspec.StopGrace(w.pod))
}

// terminate leaves phase Syncing and cancels starts in flight.
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

// endBy shortens the time until the kill to grace from now. It never extends it.
func (w *worker) endBy(grace time.Duration) {
	if deadline := w.now().Add(grace); deadline.Before(w.seen.Memory.End.Deadline) {
		w.seen.Memory.End.Deadline = deadline
	}
}

// end ends the pod for the reason why. annotations are added to the Event.
func (w *worker) end(why pod.Rejection, annotations map[string]string) {
	kind := v1.EventTypeWarning
	if why.Reason == plan.ReasonDeadline {
		kind = v1.EventTypeNormal
	}
	w.parts.Events.AnnotatedEventf(podspec.Reference(w.pod), annotations, kind, why.Reason, "%s", why.Message)
	w.seen.Memory.End.Why = &why
	w.terminate(why.Reason)
}

// evict ends the pod to protect the node or other pods, unless it is already ending.
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

// terminated leaves phase Terminating: nothing runs any more.
func (w *worker) terminated() {
	w.log(2, "Pod has terminated")
	w.seen.Memory.Phase = pod.Terminated
	w.steps.drop(func(plan.Step) bool { return true })
	w.parts.Objects.Unregister(w.uid)
	w.publish() // the owner reads it
	w.owner.released(w.uid)
}

// removeLeftovers removes a terminated pod's exited containers, although their logs could still be read.
func (w *worker) removeLeftovers() {
	if w.phase() == pod.Terminated {
		w.seen.Memory.End.Remove = true
	}
}

// trim marks the pod's exited containers that exceed the node's limits.
func (w *worker) trim(ids []string) {
	m := &w.seen.Memory
	for _, run := range m.Runs {
		run.Surplus = false
	}
	for _, id := range ids {
		m.Note(id).Surplus = true
	}
}
