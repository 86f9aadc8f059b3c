package worker

import (
	"context"
	"errors"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// reporter brings the pod's status up to date and to the API server, and keeps a static pod's mirror there.
type reporter struct {
	*core
	jobs    *jobs
	steps   *steps
	remains *remains
	final   bool          // Memory.Last is the status that stays
	sent    *v1.PodStatus // what the API server has of us; nil: to be written
	unsent  time.Time     // since when a status waits for a start to end; zero: none does
}

var errNoNode = errors.New("cannot make a mirror pod: this node's own object is not known yet")

// update brings the status up to date with what is known.
func (r *reporter) update() {
	if r.final {
		return
	}
	m := &r.seen.Memory
	m.Busy = r.steps.list()
	// A pod that had ended before this agent began, and of which the engine has nothing, keeps the status that it has.
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

// written says that the API server has the status as it is.
func (r *reporter) written() bool {
	return r.sent != nil && reflect.DeepEqual(*r.sent, r.seen.Memory.Last)
}

// write sees to it that the API server has the status. The newest wins; one write at a time.
func (r *reporter) write() {
	if r.parts.Status == nil || r.remains.reported() || r.written() {
		return
	}
	target := r.pod
	if podspec.IsStatic(r.pod) {
		if target = r.mirror; !r.mirrored() {
			return
		}
	}
	if r.waitForStart() {
		return
	}
	r.unsent = time.Time{}
	status := *r.seen.Memory.Last.DeepCopy()
	r.jobs.run(writingStatus, func(ctx context.Context) error {
		err := r.parts.Status.Write(ctx, target, status)
		if apierrors.IsNotFound(err) {
			klog.V(2).InfoS("No pod to write a status to", "pod", klog.KObj(target))
			return nil // its removal is on the way to us
		}
		return err
	}, func(err error) {
		if err == nil {
			r.sent = &status
		}
	})
}

// statusPatience is how long a status may wait for a start that is under way, whose end makes another.
const statusPatience = 2 * time.Second

// waitForStart says that the status shows only how far the pod's first start has come, which goes on: what comes of it is worth a write,
// immediately, and each step of it is not.
func (r *reporter) waitForStart() bool {
	m := &r.seen.Memory
	if m.Phase != pod.Syncing || m.Last.Phase != v1.PodPending || len(m.Retries) > 0 || len(r.pod.Spec.InitContainers) > 0 || !r.steps.starting() {
		return false
	}
	now := r.now()
	if r.unsent.IsZero() {
		r.unsent = now
	}
	until := r.unsent.Add(statusPatience)
	if !until.After(now) {
		return false
	}
	r.lookAt(until)
	return true
}

// mirrored says that a static pod's mirror is there and its own; else it has it made, or removed first.
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
			r.jobs.retry(mirroring) // by then the watch should have brought it
		}
	})
	return false
}

// echo compares what a source brought with what was sent. An echo of an older write, or a write of another client, has the status written
// again: StatusWriter knows which it was, and sends only what differs.
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

// deleteObject removes the API object of a pod that has terminated, once its last status is there.
func (r *reporter) deleteObject() {
	if r.parts.Status == nil || r.pod.DeletionTimestamp == nil || podspec.IsStatic(r.pod) || r.remains.reported() || !r.written() {
		return
	}
	deleted := r.pod
	r.jobs.run(deletingObject, func(ctx context.Context) error { return r.parts.Status.Delete(ctx, deleted) },
		func(err error) { r.remains.object = err == nil })
}
