package worker

import (
	"context"
	"errors"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// chore is a slow thing beside the steps, at most one of a name at a time: writing the status, the mirror, volumes, the API object.
type chore struct {
	running bool
	cancel  context.CancelFunc
	until   time.Time
	count   int
}

// held says that the chore failed and that it is too early for the next try.
func (w *worker) held(name string) bool {
	c := w.chores[name]
	if c == nil || !c.until.After(w.parts.Clock.Now()) {
		return false
	}
	w.lookAt(c.until)
	return true
}

// retry notes a failure: the next try is after a doubling back-off.
func (w *worker) retry(name string, most time.Duration) {
	c := w.chores[name]
	if c == nil {
		c = &chore{}
		w.chores[name] = c
	}
	c.until = w.parts.Clock.Now().Add(min(time.Second<<min(c.count, 10), most))
	c.count++
	w.lookAt(c.until)
}

func (w *worker) succeeded(name string) {
	if c := w.chores[name]; c != nil && !c.running {
		delete(w.chores, name)
	}
}

// dropChore forgets a back-off, so that the next try is now.
func (w *worker) dropChore(name string) {
	if c := w.chores[name]; c != nil {
		c.until = time.Time{}
	}
}

// chore runs do unless it runs already or is held by back-off; then gets its result, in the loop. An error is logged and retried.
func (w *worker) chore(name string, do func(ctx context.Context) error, then func(err error)) {
	c := w.chores[name]
	if c != nil && c.running || w.held(name) {
		return
	}
	if c == nil {
		c = &chore{}
		w.chores[name] = c
	}
	ctx, cancel := context.WithCancel(w.ctx)
	c.running, c.cancel = true, cancel
	w.crew.do(ctx, do, func(err error) {
		cancel()
		w.inbox.put(func() {
			c.running = false
			if err == nil {
				w.succeeded(name)
			} else if w.ctx.Err() == nil {
				klog.V(1).InfoS("Will try again", "pod", klog.KObj(w.pod), "what", name, "err", err)
				w.retry(name, stepBackOffMax)
			}
			then(err)
		})
	})
}

var errNoNode = errors.New("cannot make a mirror pod: this node's own object is not known yet")

// reckon brings the status up to date with what is known.
func (w *worker) reckon() {
	if w.final {
		return
	}
	w.know.Busy = w.busy()
	// A pod that had ended before this agent began, and of which the engine has nothing, keeps the status that it has.
	if !podspec.IsTerminal(w.pod.Status.Phase) || podspec.IsStatic(w.pod) || len(w.observed.Containers) > 0 {
		before := w.know.Last
		now := w.parts.Clock.Now()
		w.know.Last = plan.Status(w.pod, w.observed, w.know, now)
		if start := w.know.Last.StartTime; w.know.Began.IsZero() && !start.IsZero() {
			w.know.Began = now.Add(-max(now.Sub(start.Time), 0))
		}
		w.tellResize(&before, &w.know.Last)
		w.timing.status(w.know.Last.Phase, now)
	}
	w.final = w.know.Phase == pod.Terminated
}

// report sees to it that the API server has the status. The newest wins; one write at a time.
func (w *worker) report() {
	if w.taken < 0 {
		return // the engine has told nothing yet: unknown, not nothing
	}
	if w.parts.Status == nil || w.gone || w.deleted || w.sent != nil && reflect.DeepEqual(*w.sent, w.know.Last) {
		return
	}
	target := w.pod
	if podspec.IsStatic(w.pod) {
		if target = w.mirror; !w.mirrored() {
			return
		}
	}
	if w.unfinished() {
		return
	}
	w.unsent = time.Time{}
	status := *w.know.Last.DeepCopy()
	w.chore("status", func(ctx context.Context) error {
		err := w.parts.Status.Write(ctx, target, status)
		if apierrors.IsNotFound(err) {
			klog.V(2).InfoS("No pod to write a status to", "pod", klog.KObj(target))
			return nil // its removal is on the way to us
		}
		return err
	}, func(err error) {
		if err == nil {
			w.sent = &status
		}
	})
}

// statusPatience is how long a status may wait for a start that is under way, whose end makes another.
const statusPatience = 2 * time.Second

// unfinished says that the status tells only how far the pod's first start has come, which goes on: what comes of it is worth a write, at
// once, and each step of it is not.
func (w *worker) unfinished() bool {
	if w.know.Phase != pod.Syncing || w.know.Last.Phase != v1.PodPending || len(w.know.Failures) > 0 || len(w.pod.Spec.InitContainers) > 0 || !w.launching() {
		return false
	}
	now := w.parts.Clock.Now()
	if w.unsent.IsZero() {
		w.unsent = now
	}
	until := w.unsent.Add(statusPatience)
	if !until.After(now) {
		return false
	}
	w.lookAt(until)
	return true
}

// mirrored says that a static pod's mirror is there and its own; else it is seen to.
func (w *worker) mirrored() bool {
	if m := w.mirror; m != nil {
		if m.DeletionTimestamp == nil && m.Annotations[v1.MirrorPodAnnotationKey] == podspec.MirrorHash(w.pod) {
			return true
		}
		w.chore("mirror", func(ctx context.Context) error { return w.parts.Status.Delete(ctx, m) }, func(err error) {
			if err == nil && w.mirror == m {
				w.mirror = nil
			}
		})
		return false
	}
	pod := w.pod
	w.chore("mirror", func(ctx context.Context) error {
		node := w.parts.Objects.Node()
		if node == nil {
			return errNoNode
		}
		return w.parts.Status.CreateMirror(ctx, mirrorOf(pod, node))
	}, func(err error) {
		if err == nil {
			w.retry("mirror", stepBackOffMax) // by then the watch should have brought it
		}
	})
	return false
}

// refreshVolumes brings the volumes of a running pod up to date, if that is due.
func (w *worker) refreshVolumes() {
	if c := w.chores["volumes"]; !w.volumesDue || w.know.Phase != pod.Syncing || len(w.observed.Containers) == 0 || c != nil && c.running || w.held("volumes") {
		return
	}
	w.volumesDue = false
	p := w.pod
	w.chore("volumes", func(ctx context.Context) error {
		_, err := w.parts.Volumes.Prepare(ctx, p)
		return err
	}, func(err error) {
		if err == nil || w.ctx.Err() != nil || w.know.Phase != pod.Syncing {
			return
		}
		w.volumesDue = true
		if w.isNews("volumes", err.Error()) {
			w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeWarning, pod.ReasonMount, err.Error())
		}
	})
}

// chase does what is left of a terminated pod: volumes, then the API object, then nothing but waiting for its last traces to go. What
// the engine cannot remove yet does not hold up the API.
func (w *worker) chase() {
	if w.know.Phase != pod.Terminated || w.taken < 0 {
		return
	}
	if !w.unlimited && w.parts.Cgroups != nil { // holds up nobody: the engine may not be through with the containers' own
		w.chore("cgroup", func(ctx context.Context) error { return w.parts.Cgroups.Remove(ctx, w.uid) }, func(err error) { w.unlimited = err == nil })
	}
	if !w.cleaned {
		w.chore("clean", func(ctx context.Context) error { return w.parts.Volumes.Clean(ctx, w.uid) }, func(err error) { w.cleaned = err == nil })
		return
	}
	w.vacate()
	statusThere := w.parts.Status == nil || w.sent != nil && reflect.DeepEqual(*w.sent, w.know.Last)
	if w.pod.DeletionTimestamp != nil && !w.gone && !w.deleted && statusThere && w.parts.Status != nil && !podspec.IsStatic(w.pod) {
		pod := w.pod
		w.chore("delete", func(ctx context.Context) error { return w.parts.Status.Delete(ctx, pod) }, func(err error) { w.deleted = err == nil })
	}
	if w.gone && w.taken == w.finished && w.decision.Done && len(w.ops) == 0 && (w.unlimited || w.parts.Cgroups == nil) {
		w.over = true
	}
}
