package worker

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// reporter updates the pod's status, sends it to the API server, and maintains a static pod's mirror pod there.
type reporter struct {
	*core
	jobs    *jobs
	steps   *steps
	remains *remains
	final   bool          // Memory.Last is the final status
	sent    *v1.PodStatus // the status that we last wrote; nil: to be written
	unsent  time.Time     // since when a status has waited for a start to end; zero: none waits
}

var errNoNode = errors.New("cannot make a mirror pod: this node's own object is not known yet")

// update brings the status up to date.
func (r *reporter) update() {
	if r.final {
		return
	}
	m := &r.seen.Memory
	m.Busy = r.steps.list()
	// A pod that ended before this agent started and has no containers in the engine keeps its status.
	if !podspec.IsTerminal(r.pod.Status.Phase) || podspec.IsStatic(r.pod) || len(r.seen.Engine.Containers) > 0 {
		before := m.Last
		now := r.now()
		m.Last = plan.Status(r.pod, r.seen, now)
		if start := m.Last.StartTime; m.Began.IsZero() && !start.IsZero() {
			m.Began = now.Add(-max(now.Sub(start.Time), 0))
		}
		r.resizeCompleted(&before, &m.Last)
		r.timing.status(m.Last.Phase, now)
	}
	r.final = m.Phase == pod.Terminated
}

// written reports whether the API server has the current status.
func (r *reporter) written() bool {
	return r.sent != nil && reflect.DeepEqual(*r.sent, r.seen.Memory.Last)
}

// write sends the status to the API server. The newest status wins; one write runs at a time. current says that nothing has happened since the
// status was brought up to date.
func (r *reporter) write(current bool) {
	if r.parts.Status == nil || r.remains.reported() {
		return
	}
	if r.written() {
		r.unsent = time.Time{}
		return
	}
	target := r.pod
	if podspec.IsStatic(r.pod) {
		if target = r.mirror; !r.mirrored() {
			return
		}
	}
	if r.waitForStart(current) {
		return
	}
	r.unsent = time.Time{}
	status := *r.seen.Memory.Last.DeepCopy()
	r.jobs.run(writingStatus, func(ctx context.Context) error {
		err := r.parts.Status.Write(ctx, target, status)
		if apierrors.IsNotFound(err) {
			klog.V(2).InfoS("No pod to write a status to", "pod", klog.KObj(target))
			return nil // its removal will reach us
		}
		return err
	}, func(err error) {
		if err == nil {
			r.sent = &status
		}
	})
}

// statusPatience is how long a status may wait for a start in progress, whose end changes it again. laterPatience is the same for a pod whose
// first status has told that it is being worked on.
const (
	statusPatience = 2 * time.Second
	laterPatience  = 10 * time.Second
)

// waitForStart reports that the status only shows the progress of a start that is still running: the pod's first one, or that of a container
// in place of one that is ended for it. Between two steps of a start, and after the last, nothing is written until their result has been
// observed. The result of the start is written immediately; its single steps are not worth a write, which would hold up the next.
func (r *reporter) waitForStart(current bool) bool {
	m := &r.seen.Memory
	first := m.Last.Phase == v1.PodPending && len(r.pod.Spec.InitContainers) == 0
	replacing := r.replacing()
	if m.Phase != pod.Syncing || len(m.Retries) > 0 || !first && !replacing {
		return false
	}
	if current && !r.steps.starting() && !(replacing && r.steps.any()) {
		return false
	}
	now := r.now()
	if r.unsent.IsZero() {
		r.unsent = now
	}
	until := r.unsent.Add(statusPatience)
	if r.sent != nil && !replacing {
		until = r.unsent.Add(laterPatience)
	}
	if !until.After(now) {
		return false
	}
	r.lookAt(until)
	return true
}

// replacing reports whether the newest started container of a name ends, or has ended, to be replaced.
func (r *reporter) replacing() bool {
	return slices.ContainsFunc(r.pod.Spec.Containers, func(c v1.Container) bool {
		list := r.seen.Engine.Attempts(c.Name)
		return len(list) > 0 && r.seen.Memory.Run(list[0].ID).Replace
	})
}

// mirrored reports whether the static pod's own mirror pod exists. If not, it creates it, or first deletes an outdated one.
func (r *reporter) mirrored() bool {
	if m := r.mirror; m != nil {
		if m.DeletionTimestamp == nil && m.Annotations[v1.MirrorPodAnnotationKey] == podspec.MirrorHash(r.pod) {
			return true
		}
		r.jobs.run(mirroring, func(ctx context.Context) error { return r.parts.Status.Delete(ctx, m) }, func(err error) {
			if err == nil && r.mirror == m {
				r.mirror = nil
			}
		})
		return false
	}
	static := r.pod
	r.jobs.run(mirroring, func(ctx context.Context) error {
		node := r.parts.Objects.Node()
		if node == nil {
			return errNoNode
		}
		return r.parts.Status.CreateMirror(ctx, mirrorOf(static, node))
	}, func(err error) {
		if err == nil {
			r.jobs.retry(mirroring) // by then the watch should have delivered it
		}
	})
	return false
}

// echo compares a status from a source with the last one sent. If they differ, because of an older write or another client's write, the
// status is written again. StatusWriter distinguishes the two and sends only differences.
func (r *reporter) echo() {
	known := &r.pod.Status
	if r.mirror != nil {
		known = &r.mirror.Status
	}
	if r.sent != nil && (podspec.IsStatic(r.pod) && r.mirror == nil || !equality.Semantic.DeepEqual(r.sent, known)) {
		r.sent = nil
	}
	r.jobs.hurry(writingStatus)
	r.jobs.hurry(mirroring)
}

// deleteObject deletes the API object of a terminated pod after its last status is written.
func (r *reporter) deleteObject() {
	if r.parts.Status == nil || r.pod.DeletionTimestamp == nil || podspec.IsStatic(r.pod) || r.remains.reported() || !r.written() {
		return
	}
	deleted := r.pod
	r.jobs.run(deletingObject, func(ctx context.Context) error { return r.parts.Status.Delete(ctx, deleted) },
		func(err error) { r.remains.object = err == nil })
}
