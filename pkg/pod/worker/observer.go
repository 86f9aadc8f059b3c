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

// observer keeps the engine's data about the pod up to date.
type observer struct {
	*core
	jobs     *jobs
	steps    *steps
	underway bool
	stale    bool // our data is older than some event
	taken    int  // number of ended steps at the time of the last observation; -1: never observed
	endings  endings
	kills    memoryKills
}

// newObserver returns an observer. known false means that the engine certainly has nothing of the pod.
func newObserver(c *core, j *jobs, s *steps, known bool) *observer {
	o := &observer{core: c, jobs: j, steps: s, stale: known}
	if known {
		o.taken = -1
	}
	return o
}

// never reports that the engine has not answered yet: its state is unknown, not empty.
func (o *observer) never() bool { return o.taken < 0 }

// current reports that no step has ended since the last observation, so that decisions can use it.
func (o *observer) current() bool { return o.taken == o.steps.ended }

// observe asks the engine if our data may be out of date. Planning waits for the answer.
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

// hint records that the engine's containers may have changed.
func (o *observer) hint() {
	o.stale = true
	o.jobs.hurry(observing)
}

// relisted accepts this pod's part of an observation of all pods, which started at time began. It ignores the part if a step is in
// flight or has ended since then. The known cgroup limits stay: only our steps change them.
func (o *observer) relisted(engine pod.Observed, began time.Time) {
	if engine.Unclear || o.steps.any() || o.underway || !o.steps.lastEnd.Before(began) {
		return
	}
	o.stale = false
	o.accept(engine, o.parts.attachments(o.pod, engine), o.steps.ended)
}

// accept stores an observation that was made after at steps had ended.
func (o *observer) accept(engine pod.Observed, network pod.Attachments, at int) {
	ended := o.endings.take(engine)
	engine.Containers = o.kills.mark(engine.Containers, ended, o.memoryKills)
	o.seen.Engine, o.seen.Network, o.taken = engine, network, at
	o.parts.expose(o.uid, o.seen.Observed())
	o.tell(ended)
}

// memoryKills returns the kernel's count for the pod's cgroup.
func (o *observer) memoryKills() (kills uint64, known bool) {
	if o.parts.Cgroups == nil {
		return 0, false
	}
	return o.parts.Cgroups.MemoryKills(o.pod)
}

// tell counts containers that have exited since the last observation.
func (o *observer) tell(ended []pod.Container) {
	for _, c := range ended {
		c.OOMKilled = c.OOMKilled || o.kills.of[c.ID]
		if kind, _, ok := podspec.FindContainer(o.pod, c.Name); ok && o.parts.Timing != nil {
			o.parts.Timing.ContainerEnded(kind, c.ExitCode, plan.EndReason(c))
		}
	}
}

// attachments is what the Attacher knows about the pod; nil if there is no Attacher.
func (p *Parts) attachments(desired *v1.Pod, engine pod.Observed) pod.Attachments {
	if p.Attacher == nil {
		return nil
	}
	return p.Attacher.Attachments(desired, engine)
}

// expose serves the pod's hostPorts if the engine does not.
func (p *Parts) expose(uid types.UID, observed pod.Observed) {
	if p.HostPorts != nil {
		p.HostPorts.Serve(uid, observed)
	}
}

// exposeAll does the same for all pods found at the start, because workers start only after a source has delivered their pods.
func (p *Parts) exposeAll(found map[types.UID]pod.Observed) {
	for uid, observed := range found {
		p.expose(uid, observed.With(p.attachments(orphanPod(uid, observed), observed)))
	}
	if p.HostPorts != nil {
		p.HostPorts.FoundAll()
	}
}
