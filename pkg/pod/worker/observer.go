package worker

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// observer keeps what the engine has of the pod up to date.
type observer struct {
	*core
	jobs     *jobs
	steps    *steps
	underway bool
	stale    bool // what we have is older than something that happened
	taken    int  // how many steps had ended when it was taken; -1: never
	endings  endings
}

// newObserver makes an observer. known false: the engine is known to have nothing of the pod.
func newObserver(c *core, j *jobs, s *steps, known bool) *observer {
	o := &observer{core: c, jobs: j, steps: s, stale: known}
	if known {
		o.taken = -1
	}
	return o
}

// never says that the engine has not answered yet: what it has is unknown, not nothing.
func (o *observer) never() bool { return o.taken < 0 }

// current says that no step has ended since the last observation, so that it can be acted upon.
func (o *observer) current() bool { return o.taken == o.steps.ended }

// observe asks the engine when what we have of it may be out of date. No plan is made before the answer is there.
func (o *observer) observe() {
	if o.underway || !o.stale && o.current() || o.jobs.waits(observing) || o.current() && o.steps.justStarting() {
		return
	}
	o.underway, o.stale = true, false
	at, desired, cgroup := o.steps.ended, o.pod, o.steps.cgroup
	var engine pod.Observed
	var network pod.Attachments
	o.do(o.ctx, func(ctx context.Context) (err error) {
		if engine, err = o.parts.Runtime.Observe(ctx, o.uid); err != nil {
			return err
		}
		network = o.parts.attachments(desired, engine)
		if o.parts.Cgroups != nil && cgroup == nil {
			cgroup, err = o.parts.Cgroups.Limits(desired)
		}
		return err
	}, func(err error) {
		o.underway = false
		if err != nil {
			o.stale = true
			o.log(1, "Cannot observe the pod's containers; will try again", "err", err)
			o.jobs.retry(observing)
			return
		}
		o.jobs.done(observing)
		o.seen.Cgroup = cgroup
		o.accept(engine, network, at)
		if o.current() {
			o.steps.cgroup = cgroup
		}
	})
}

// hint says that the engine's containers may have changed.
func (o *observer) hint() {
	o.stale = true
	o.jobs.hurry(observing)
}

// relisted accepts what an observation of all pods, begun at began, found of this one. It counts only if no step was in flight or has
// ended since. What the pod's cgroup is held to stays: only our steps change it.
func (o *observer) relisted(engine pod.Observed, began time.Time) {
	if engine.Unclear || o.steps.any() || o.underway || !o.steps.lastEnd.Before(began) {
		return
	}
	o.stale = false
	o.accept(engine, o.parts.attachments(o.pod, engine), o.steps.ended)
}

// accept takes an observation that was made when that many steps had ended.
func (o *observer) accept(engine pod.Observed, network pod.Attachments, at int) {
	o.seen.Engine, o.seen.Network, o.taken = engine, network, at
	o.parts.expose(o.uid, o.seen.Observed())
	o.tellEndings()
}

// tellEndings counts the containers that have ended since the last observation.
func (o *observer) tellEndings() {
	for _, c := range o.endings.take(o.seen.Engine) {
		if kind, _, ok := podspec.FindContainer(o.pod, c.Name); ok && o.parts.Timing != nil {
			o.parts.Timing.ContainerEnded(kind, c.ExitCode, plan.EndReason(c))
		}
	}
}

// attachments is what the Attacher knows of what the engine has; nil where there is none.
func (p *Parts) attachments(desired *v1.Pod, engine pod.Observed) pod.Attachments {
	if p.Attacher == nil {
		return nil
	}
	return p.Attacher.Attachments(desired, engine)
}

// expose has the pod's hostPorts served, where the engine does not.
func (p *Parts) expose(uid types.UID, observed pod.Observed) {
	if p.HostPorts != nil {
		p.HostPorts.Serve(uid, observed)
	}
}

// exposeAll does it for what is found at the start: the pods' workers begin only when a source has delivered them.
func (p *Parts) exposeAll(found map[types.UID]pod.Observed) {
	for uid, observed := range found {
		p.expose(uid, observed.With(p.attachments(orphanPod(uid, observed), observed)))
	}
}
