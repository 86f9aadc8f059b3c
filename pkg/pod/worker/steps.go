package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// steps are a worker's steps in flight. Each runs in its own goroutine and ends in the loop.
type steps struct {
	*core
	running map[*operation]struct{}
	ended   int       // number of ended steps
	lastEnd time.Time // when the last step ended
	// cgroup is the limits of the pod's cgroup after the last step, or as last read; nil: to be read. Only our steps change them.
	cgroup *podspec.Resources
}

// operation is a step in flight.
type operation struct {
	step   plan.Step
	cancel context.CancelFunc
	since  time.Time
	cgroup *podspec.Resources // limits of the pod's cgroup after it was created; read when the step has ended
	asIs   bool               // the pod's cgroup already sufficed
	// dropped means that we cancelled it: ignore its failure.
	dropped bool
}

func (op *operation) drop() {
	op.dropped = true
	op.cancel()
}

func newSteps(c *core) *steps { return &steps{core: c, running: map[*operation]struct{}{}} }

// any reports whether a step is in flight.
func (s *steps) any() bool { return len(s.running) > 0 }

// list returns the steps in flight, oldest first.
func (s *steps) list() []plan.Step {
	var list []plan.Step
	for _, op := range slices.SortedFunc(maps.Keys(s.running), func(a, b *operation) int { return a.since.Compare(b.since) }) {
		list = append(list, op.step)
	}
	return list
}

// startPatience is how long changes that a start makes to the engine's containers are not observed while the start runs.
const startPatience = 2 * time.Second

// justStarting reports whether a step of a start has just begun. Most engine events of the pod are then its own, and a complete observation
// follows it.
func (s *steps) justStarting() bool {
	for op := range s.running {
		until := op.since.Add(startPatience)
		if plan.Starts(op.step) && until.After(s.now()) {
			s.lookAt(until)
			return true
		}
	}
	return false
}

// starting reports whether a step of a start is in flight.
func (s *steps) starting() bool {
	for op := range s.running {
		if plan.Starts(op.step) {
			return true
		}
	}
	return false
}

// drop cancels the steps in flight that match.
func (s *steps) drop(match func(plan.Step) bool) {
	for op := range s.running {
		if match(op.step) {
			op.drop()
		}
	}
}

// begin starts a step. If it stops a container, it cancels the other steps on it.
func (s *steps) begin(step plan.Step, now time.Time) {
	of := step.Of()
	s.timing.step(s.phase(), len(s.seen.Engine.Sandboxes)+len(s.seen.Engine.Containers) == 0, now)
	klog.V(2).InfoS("Step", "pod", klog.KObj(s.pod), "action", step.Verb(), "container", of.Container, "attempt", of.Attempt, "id", of.ID, "reason", of.Reason)
	op := &operation{step: step, since: now}
	var do func(context.Context) error
	switch step := step.(type) {
	case plan.EngineStep:
		s.announce(step.Step, now)
		do = s.engineStep(op, step.Step)
	case plan.WorkerStep:
		if step.Task == plan.PreStop {
			s.stopping(of, now)
		}
		do = s.workerStep(step)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	op.cancel = cancel
	s.running[op] = struct{}{}
	s.do(ctx, do, func(err error) {
		cancel()
		delete(s.running, op)
		s.ended++
		s.lastEnd = s.now()
		s.noteCgroup(op)
		s.end(op, err)
	})
}

// announce sends the Event that precedes an engine step.
func (s *steps) announce(step pod.Step, now time.Time) {
	switch step.Action {
	case pod.CreateSandbox:
		if step.Attempt > 0 && s.isNews("sandbox", fmt.Sprint(step.Attempt)) {
			s.event(v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
	case pod.StopContainer:
		s.stopping(plan.EngineStep{Step: step}.Of(), now)
	}
}

// stopping records when the stop of a container becomes a kill, and cancels the other steps on it.
func (s *steps) stopping(of plan.Subject, now time.Time) {
	run := s.seen.Memory.Note(of.ID)
	deadline := run.Stop
	if deadline.IsZero() {
		deadline = now.Add(of.Grace)
		s.containerEvent(of, v1.EventTypeNormal, "Killing", of.Reason)
	}
	if by := s.seen.Memory.End.Deadline; s.phase() != pod.Syncing && by.Before(deadline) {
		deadline = by
	}
	run.Stop = deadline
	s.drop(func(other plan.Step) bool {
		return other.Of().Container == of.Container && other.Verb() != string(pod.RemoveContainer)
	})
}

// engineStep is the slow part of a Runtime step. It runs in its own goroutine and reads none of the worker's changing state.
func (s *steps) engineStep(op *operation, step pod.Step) func(context.Context) error {
	desired, parts := s.pod, s.parts
	switch step.Action {
	case pod.CreateSandbox:
		idle := s.idle("")
		return func(ctx context.Context) (err error) {
			if err := endIdle(ctx, parts.Cgroups, desired, idle); err != nil {
				return err
			}
			if step.Sandbox, err = parts.Resolver.Sandbox(ctx, desired); err != nil {
				return err
			}
			if step.Sandbox.CgroupParent, op.cgroup, err = makeCgroup(ctx, parts.Cgroups, desired); err != nil {
				return err
			}
			done, err := parts.slots.take(ctx)
			if err != nil {
				return err
			}
			defer done()
			return parts.Runtime.Apply(ctx, desired, step)
		}
	case pod.StartContainer:
		return s.startContainer(op, step)
	case pod.StopSandbox, pod.RemoveSandbox, pod.RemoveContainer: // release its network before it ends
		at := s.member(step.ID)
		return func(ctx context.Context) error {
			if parts.Attacher != nil {
				if err := parts.Attacher.Detach(ctx, at); err != nil {
					return err
				}
			}
			if step.Action != pod.StopSandbox {
				if err := endIdle(ctx, parts.Cgroups, desired, []string{step.ID}); err != nil {
					return err
				}
			}
			return parts.Runtime.Apply(ctx, desired, step)
		}
	}
	return func(ctx context.Context) error { return parts.Runtime.Apply(ctx, desired, step) }
}

func (s *steps) startContainer(op *operation, step pod.Step) func(context.Context) error {
	desired, parts := s.pod, s.parts
	kind, spec, _ := podspec.FindContainer(desired, step.Container)
	at := pod.Attempt{Kind: kind, Number: step.Attempt}
	observed := s.seen.Observed()
	if box := observed.NewestSandbox(); box != nil && s.seen.NeedsSandbox(desired) {
		at.SandboxID, at.Addresses, at.Runtime = box.ID, box.Addresses, box.Runtime
	}
	at.TargetID = s.runningID(podspec.TargetContainer(desired, kind, step.Container))
	op.asIs = s.cgroupSuffices()
	idle := s.idle(step.Container)
	return func(ctx context.Context) (err error) {
		if err := endIdle(ctx, parts.Cgroups, desired, idle); err != nil {
			return err
		}
		if step.Inputs, err = parts.Resolver.Container(ctx, desired, spec, at); err != nil {
			return err
		}
		if op.asIs {
			step.Inputs.CgroupParent = parts.Cgroups.Parent(desired)
		} else if step.Inputs.CgroupParent, _, err = makeCgroup(ctx, parts.Cgroups, desired); err != nil {
			return err
		}
		return parts.Runtime.Apply(ctx, desired, step)
	}
}

// workerStep is the slow part of a worker step. It runs in its own goroutine too.
func (s *steps) workerStep(step plan.WorkerStep) func(context.Context) error {
	desired, parts := s.pod, s.parts
	_, spec, _ := podspec.FindContainer(desired, step.Container)
	hook := hookRun{pod: desired, container: spec, id: step.ID, ips: s.addresses(), parts: parts}
	switch step.Task {
	case plan.ChooseRuntime:
		return func(ctx context.Context) error {
			handler, err := parts.Resolver.Handler(ctx, desired)
			if err == nil {
				s.inbox.put(func() { s.seen.Memory.Handler = &handler })
			}
			return err
		}
	case plan.AttachNetwork:
		at := s.member(step.ID)
		return func(ctx context.Context) error { return parts.Attacher.Attach(ctx, desired, at) }
	case plan.PostStart:
		return func(ctx context.Context) error { return hook.run(ctx, spec.Lifecycle.PostStart) }
	case plan.PreStop:
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, step.Grace)
			defer cancel()
			return hook.run(ctx, spec.Lifecycle.PreStop)
		}
	case plan.LimitPod:
		return func(ctx context.Context) error { return parts.Cgroups.Limit(ctx, desired, *step.Resources) }
	}
	return func(context.Context) error { return fmt.Errorf("cannot do step %q: unknown task", step.Task) }
}

// member is the sandbox or container with this id, as last observed.
func (s *steps) member(id string) pod.Member {
	for i := range s.seen.Engine.Sandboxes {
		if box := &s.seen.Engine.Sandboxes[i]; box.ID == id {
			return pod.Member{ID: id, SandboxID: id, PID: box.PID}
		}
	}
	for i := range s.seen.Engine.Containers {
		if c := &s.seen.Engine.Containers[i]; c.ID == id {
			return pod.Member{ID: id, SandboxID: c.SandboxID, PID: c.HostPID}
		}
	}
	return pod.Member{ID: id}
}

// runningID is the engine's id of the named container if it is running; "" otherwise.
func (s *steps) runningID(name string) string {
	for i := range s.seen.Engine.Containers {
		if c := &s.seen.Engine.Containers[i]; c.Name == name && c.State == pod.Running {
			return c.ID
		}
	}
	return ""
}

// cgroupSuffices reports that the pod's cgroup exists and is large enough. While the sandbox runs in it, the cgroup cannot disappear.
func (s *steps) cgroupSuffices() bool {
	box := s.seen.Engine.NewestSandbox()
	return s.cgroup != nil && box != nil && box.Running && podspec.PodResourcesOf(s.pod).AtLeast(*s.cgroup) == *s.cgroup
}

// noteCgroup records what is known of the pod's cgroup after a step. Other steps may have run at the same time, so only the first step,
// which creates the cgroup, is trusted.
func (s *steps) noteCgroup(op *operation) {
	switch step := op.step.(type) {
	case plan.EngineStep:
		switch step.Action {
		case pod.CreateSandbox:
			s.cgroup = op.cgroup
		case pod.StartContainer:
			if !op.asIs {
				s.cgroup = nil
			}
		}
	case plan.WorkerStep:
		if step.Task == plan.LimitPod {
			s.cgroup = nil
		}
	}
}

// makeCgroup creates the pod's cgroup or raises its limits if necessary. It returns the cgroup's name for the engine and its limits. It
// never lowers limits: resources granted before may still be in use.
func makeCgroup(ctx context.Context, cgroups pod.Cgroups, desired *v1.Pod) (parent string, limits *podspec.Resources, err error) {
	if cgroups == nil {
		return "", nil, nil
	}
	want := podspec.PodResourcesOf(desired)
	have, err := cgroups.Limits(desired)
	if err != nil {
		return "", nil, err
	}
	if have != nil {
		want = want.AtLeast(*have)
	}
	if have == nil || want != *have {
		err = cgroups.Limit(ctx, desired, want)
	}
	if err != nil {
		return "", nil, err
	}
	return cgroups.Parent(desired), &want, nil
}
