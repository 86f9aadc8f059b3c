// Package worker runs the node's pods: a Manager tracks the desired pods, and one worker per pod implements its pod.
//
//	pod.Update -> Manager -> worker: plan.Plan(pod, seen, now) -> steps -> pod.Runtime, Volumes, Attacher
//	                                 plan.Status(pod, seen, now) -> pod.StatusWriter
//
// A worker owns everything that is known about its pod; others read Manager.Snapshot. It decides nothing that package plan can decide.
package worker

import (
	"context"
	"maps"
	"reflect"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// worker owns one pod from its first appearance until nothing of it remains. Its loop never blocks: slow operations run in other goroutines
// and return their results through the inbox. Its parts share a core, and only the loop uses them.
type worker struct {
	*core
	jobs     *jobs
	steps    *steps
	observer *observer
	reporter *reporter
	probes   *probes
	remains  *remains

	owner   owner
	leaving bool // used by the owner: no source wants the pod, and the worker was asked to end it
	view    atomic.Pointer[pod.View]
	vacated chan struct{} // closed when nothing of the pod runs and its volumes are gone, or the loop has ended

	decision plan.Decision // the latest
	// volumesDue means that the volumes' contents may be out of date.
	volumesDue bool
}

// owner follows the end of a pod. Workers' loops call it.
type owner interface {
	// released reports, once, that nothing of the pod runs any more.
	released(uid types.UID)
	// ended reports that the worker has nothing left to do.
	ended(uid types.UID)
}

// newWorker returns a worker that does not run yet. known false means that the engine certainly has nothing of the pod.
func newWorker(cfg *Config, parts *Parts, d pod.Desired, known bool, agentStart time.Time, owner owner) *worker {
	w := &worker{core: newCore(cfg, parts, d, agentStart), owner: owner, vacated: make(chan struct{}), remains: &remains{cgroup: parts.Cgroups == nil}}
	w.jobs, w.steps, w.probes = newJobs(w.core), newSteps(w.core), newProbes(w.core)
	w.observer = newObserver(w.core, w.jobs, w.steps, known)
	w.reporter = &reporter{core: w.core, jobs: w.jobs, steps: w.steps, remains: w.remains}
	if podspec.IsTerminal(w.seen.Memory.Last.Phase) && !podspec.IsStatic(d.Pod) {
		w.terminate("the pod has ended")
	}
	if d.Pod.DeletionTimestamp != nil {
		w.terminate("the pod is deleted")
	}
	w.publish()
	return w
}

// run is the loop. It returns when nothing is left to do for the pod or when ctx ends, after its goroutines have ended.
func (w *worker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	w.ctx = ctx
	defer w.owner.ended(w.uid)
	defer w.vacate()
	defer w.crew.Wait()
	defer cancel()
	timer := w.parts.Clock.NewTimer(0)
	defer timer.Stop()
	for w.stage() != finished {
		select {
		case <-ctx.Done():
			return
		case <-w.inbox.filled:
		case <-timer.C():
		}
		w.next = time.Time{}
		if err := guarded(func() error { w.inbox.drain(); w.turn(); return nil }); err != nil {
			w.lookAt(w.now().Add(10 * time.Second))
		}
		timer.Stop()
		select {
		case <-timer.C():
		default:
		}
		wait := time.Duration(1<<62 - 1)
		if !w.next.IsZero() {
			wait = max(0, w.next.Sub(w.now()))
		}
		timer.Reset(wait)
	}
}

// turn looks at everything once and starts what is due.
func (w *worker) turn() {
	w.observer.observe()
	if w.observer.current() {
		w.seen.Node.HostIPs = w.cfg.HostIPs()
		w.reporter.update()
		if phase := w.phase(); w.act() != phase {
			w.reporter.update()
		}
		if !w.steps.any() {
			w.timing.rest(w.now())
		}
	}
	w.refreshVolumes()
	if !w.observer.never() {
		w.reporter.write(w.observer.current())
		w.cleanUp()
	}
	w.publish()
}

// act plans, starts the steps, and moves to the next phase, which it returns.
func (w *worker) act() pod.Phase {
	now := w.now()
	for {
		m := &w.seen.Memory
		m.Busy = w.steps.list()
		m.Forget(w.pod, &w.seen.Engine)
		w.decision = plan.Plan(w.pod, w.seen, now)
		d := w.decision
		if !d.Next.IsZero() {
			w.lookAt(d.Next)
		}
		for _, id := range d.Replace {
			m.Note(id).Replace = true
		}
		w.announceBackOff(d.Waits)
		for _, step := range d.Steps {
			w.steps.begin(step, now)
		}
		switch {
		case d.End != nil:
			w.end(*d.End, nil)
		case m.Phase == pod.Syncing && d.Done:
			w.terminate("all containers have ended")
		case m.Phase == pod.Terminating && d.Done:
			w.terminated()
		default:
			w.probes.watch(now)
			return m.Phase
		}
	}
}

// announceBackOff sends an Event for each container that has entered back-off.
func (w *worker) announceBackOff(waits []pod.Wait) {
	for _, wait := range waits {
		if wait.Reason != plan.ReasonCrashLoop {
			continue
		}
		if kind, _, _ := podspec.FindContainer(w.pod, wait.Container); w.isNews("back-off "+wait.Container, wait.ID) {
			w.containerEvent(plan.Subject{Container: wait.Container, Kind: kind}, v1.EventTypeWarning, "BackOff",
				"Back-off restarting failed container "+wait.Container+" in pod "+podspec.Label(w.pod))
		}
	}
}

// desire sets a new desired version of the pod or of its mirror pod.
func (w *worker) desire(d pod.Desired) {
	before := w.pod
	w.pod, w.mirror = d.Pod, d.Mirror
	w.resized(before, d)
	w.reporter.echo()
	switch {
	case w.pod.DeletionTimestamp != nil:
		w.terminate("the pod is deleted")
		w.endBy(podspec.StopGrace(w.pod))
	case podspec.IsTerminal(w.pod.Status.Phase) && !podspec.IsStatic(w.pod):
		w.terminate("the pod has ended")
	case w.phase() == pod.Syncing && !sameWorkload(before, w.pod):
		w.retryStarts()
		w.register()
		w.volumesDue = true
	}
}

// sameWorkload reports whether nothing changed that containers or volumes can see.
func sameWorkload(a, b *v1.Pod) bool {
	return a.Generation == b.Generation && reflect.DeepEqual(a.Spec, b.Spec) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}

// retryStarts retries failed starts now, except those that wait for a registry.
func (w *worker) retryStarts() {
	for key, r := range w.seen.Memory.Retries {
		if r.Reason != "ImagePullBackOff" && r.Reason != "ErrImagePull" {
			w.seen.Memory.Retries[key] = r.Now()
		}
	}
}

// objectsChanged handles a change of a Secret or ConfigMap of the pod.
func (w *worker) objectsChanged() {
	w.retryStarts()
	w.volumesDue = true
}

// resync is the slow timer: it updates volumes (and renews tokens) without another event.
func (w *worker) resync() { w.volumesDue = true }

// refreshVolumes updates the volumes of a running pod if that is due.
func (w *worker) refreshVolumes() {
	if !w.volumesDue || w.phase() != pod.Syncing || len(w.seen.Engine.Containers) == 0 || !w.jobs.idle(refreshing) {
		return
	}
	w.volumesDue = false
	desired := w.pod
	w.jobs.run(refreshing, func(ctx context.Context) error {
		_, err := w.parts.Volumes.Prepare(ctx, desired)
		return err
	}, func(err error) {
		if err == nil || w.ctx.Err() != nil || w.phase() != pod.Syncing {
			return
		}
		w.volumesDue = true
		if w.isNews("volumes", err.Error()) {
			w.event(v1.EventTypeWarning, pod.ReasonMount, err.Error())
		}
	})
}
