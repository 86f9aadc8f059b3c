package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// Back-off of steps that failed.
const (
	stepBackOffMin = time.Second
	stepBackOffMax = 10 * time.Second
)

// launch sets a step off. What it does to a container ends the other steps on it.
func (w *worker) launch(step pod.Step, now time.Time) {
	ctx, cancel := context.WithCancel(w.ctx)
	op := &operation{step: step, cancel: cancel, since: now}
	w.announce(step, now)
	w.timing.step(w.know.Phase, len(w.observed.Sandboxes)+len(w.observed.Containers) == 0, now)
	if step.Action == pod.StopContainer || step.Action == plan.PreStop {
		for other := range w.ops {
			if other.step.Container == step.Container && other.step.Action != pod.RemoveContainer {
				other.drop()
			}
		}
	}
	klog.V(2).InfoS("Step", "pod", klog.KObj(w.pod), "action", step.Action, "container", step.Container, "attempt", step.Attempt, "id", step.ID, "reason", step.Reason)
	w.ops[op] = struct{}{}
	do := w.doing(op)
	w.crew.do(ctx, do, func(err error) {
		cancel()
		w.inbox.put(func() {
			delete(w.ops, op)
			w.finished++
			w.lastEnd = w.parts.Clock.Now()
			w.cgroupTouched(op)
			w.settled(op, err)
		})
	})
}

// announce sends the event that goes before a step, and notes when a stop becomes a kill.
func (w *worker) announce(step pod.Step, now time.Time) {
	switch step.Action {
	case pod.CreateSandbox:
		if step.Attempt > 0 && w.isNews("sandbox", fmt.Sprint(step.Attempt)) {
			w.parts.Events.Event(podspec.Reference(w.pod), v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		}
	case pod.StopContainer, plan.PreStop:
		deadline, begun := w.know.Stops[step.ID]
		if !begun {
			deadline = now.Add(step.Grace)
			w.parts.Events.Event(podspec.ContainerReference(w.pod, step.Container, step.Kind), v1.EventTypeNormal, "Killing", step.Reason)
		}
		if w.know.Phase != pod.Syncing && w.know.Deadline.Before(deadline) {
			deadline = w.know.Deadline
		}
		w.know.Stops[step.ID] = deadline
	}
}

// doing is the slow part of a step. It runs outside the loop and reads nothing of the worker that changes.
func (w *worker) doing(op *operation) func(context.Context) error {
	step, p, parts := op.step, w.pod, w.parts
	ips := pod.PodAddresses(p, w.observed, w.know.HostIPs)
	kind, spec, _ := podspec.FindContainer(p, step.Container)
	switch step.Action {
	case pod.CreateSandbox:
		return func(ctx context.Context) (err error) {
			if step.Sandbox, err = parts.Resolver.Sandbox(ctx, p); err != nil {
				return err
			}
			if step.Sandbox.CgroupParent, op.cgroup, err = makeCgroup(ctx, parts.Cgroups, p); err != nil {
				return err
			}
			return parts.Runtime.Apply(ctx, p, step)
		}
	case pod.StartContainer:
		at := pod.Attempt{Kind: kind, Number: step.Attempt}
		if box := w.observed.NewestSandbox(); box != nil && w.know.NeedsSandbox(p) {
			at.SandboxID, at.Addresses, at.Runtime = box.ID, box.Addresses, box.Runtime
		}
		at.TargetID = w.runningID(podspec.TargetContainer(p, kind, step.Container))
		op.asIs = w.cgroupSuffices()
		return func(ctx context.Context) (err error) {
			if step.Inputs, err = parts.Resolver.Container(ctx, p, spec, at); err != nil {
				return err
			}
			if op.asIs {
				step.Inputs.CgroupParent = parts.Cgroups.Parent(p)
			} else if step.Inputs.CgroupParent, _, err = makeCgroup(ctx, parts.Cgroups, p); err != nil {
				return err
			}
			return parts.Runtime.Apply(ctx, p, step)
		}
	case pod.AttachNetwork, pod.StopSandbox, pod.RemoveSandbox, pod.RemoveContainer:
		return w.networkStep(step)
	case plan.ChooseRuntime:
		return func(ctx context.Context) error {
			handler, err := parts.Resolver.Handler(ctx, p)
			if err == nil {
				w.inbox.put(func() { w.know.Handler = &handler })
			}
			return err
		}
	case plan.PostStart:
		hook := hookRun{pod: p, container: spec, id: step.ID, ips: ips, parts: parts}
		return func(ctx context.Context) error { return hook.run(ctx, spec.Lifecycle.PostStart) }
	case plan.PreStop:
		hook := hookRun{pod: p, container: spec, id: step.ID, ips: ips, parts: parts}
		return func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, step.Grace)
			defer cancel()
			return hook.run(ctx, spec.Lifecycle.PreStop)
		}
	case pod.UpdatePod:
		return func(ctx context.Context) error { return parts.Cgroups.Limit(ctx, p, *step.Resources) }
	}
	return func(ctx context.Context) error { return parts.Runtime.Apply(ctx, p, step) }
}

// cgroupSuffices says that the pod's cgroup is known to be there, for while the sandbox runs in it it does not go, and to be large enough.
func (w *worker) cgroupSuffices() bool {
	box := w.observed.NewestSandbox()
	return w.cgroup != nil && box != nil && box.Running && podspec.PodResourcesOf(w.pod).AtLeast(*w.cgroup) == *w.cgroup
}

// cgroupTouched notes what is known of the pod's cgroup after a step. Others may have run beside it: only the first of all, which makes the
// cgroup, is believed.
func (w *worker) cgroupTouched(op *operation) {
	switch {
	case op.step.Action == pod.CreateSandbox:
		w.cgroup = op.cgroup
	case op.step.Action == pod.UpdatePod, op.step.Action == pod.StartContainer && !op.asIs:
		w.cgroup = nil
	}
}

// makeCgroup makes the pod's cgroup, or finds that it is there and large enough, names it for the engine and says what it is held to. It
// never takes anything from it: what was granted before may still be in use.
func makeCgroup(ctx context.Context, cgroups pod.Cgroups, pod *v1.Pod) (parent string, held *podspec.Resources, err error) {
	if cgroups == nil {
		return "", nil, nil
	}
	want := podspec.PodResourcesOf(pod)
	have, err := cgroups.Limits(pod)
	if err != nil {
		return "", nil, err
	}
	if have != nil {
		want = want.AtLeast(*have)
	}
	if have == nil || want != *have {
		err = cgroups.Limit(ctx, pod, want)
	}
	if err != nil {
		return "", nil, err
	}
	return cgroups.Parent(pod), &want, nil
}

// runningID is the engine's id of the container of that name while it runs; "" otherwise.
func (w *worker) runningID(name string) string {
	for _, c := range w.observed.Containers {
		if c.Name == name && c.State == pod.Running {
			return c.ID
		}
	}
	return ""
}

// settled takes in how a step ended.
func (w *worker) settled(op *operation, err error) {
	if op.dropped || w.ctx.Err() != nil {
		return
	}
	step := op.step
	if err != nil {
		klog.V(1).InfoS("Step failed", "pod", klog.KObj(w.pod), "action", step.Action, "container", step.Container, "id", step.ID, "err", err)
	}
	switch step.Action {
	case pod.CreateSandbox, plan.ChooseRuntime:
		w.sandboxSettled(err)
	case pod.AttachNetwork:
		w.attachSettled(step, err)
	case pod.StartContainer:
		w.startSettled(step, err)
	case plan.PostStart:
		w.postStarted(step, err)
	case pod.UpdateContainer, pod.UpdatePod:
		w.updateSettled(step, err)
	case plan.PreStop:
		hooks := w.know.Hooks[step.ID]
		hooks.PreStop = true
		w.know.Hooks[step.ID] = hooks
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			w.event(step, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
	default:
		if err == nil {
			delete(w.know.Failures, step.ID)
			return
		}
		if step.Action == pod.StopContainer || step.Action == pod.StopSandbox {
			w.parts.Events.Eventf(podspec.Reference(w.pod), v1.EventTypeWarning, "FailedKillPod", "error killing pod: %v", err)
		}
		w.failed(step.ID, "", err.Error(), 0)
	}
}

func (w *worker) sandboxSettled(err error) {
	if err == nil {
		delete(w.know.Failures, "")
		return
	}
	var start *pod.StartError
	if errors.As(err, &start) {
		w.failed("", start.Reason, start.Message, start.RetryAfter)
		return
	}
	w.parts.Events.Eventf(podspec.Reference(w.pod), v1.EventTypeWarning, pod.ReasonSandbox, "Failed to create pod sandbox: %v", err)
	w.failed("", pod.ReasonSandbox, err.Error(), 0)
}

func (w *worker) startSettled(step pod.Step, err error) {
	if err == nil {
		delete(w.know.Failures, step.Container)
		w.event(step, v1.EventTypeNormal, "Created", "Container created")
		w.event(step, v1.EventTypeNormal, "Started", "Container started")
	}
	if delay, ok := plan.StartDelay(w.pod, w.observed, &w.know, step); ok {
		w.know.Delays[step.Container] = delay
	}
	if err == nil {
		return
	}
	var start *pod.StartError
	if errors.As(err, &start) {
		reason, message := start.Waiting()
		w.failed(step.Container, reason, message, start.RetryAfter)
		return
	}
	reason, message := "RunContainerError", err.Error()
	var told interface {
		Waiting() (reason, message string)
	} // an engine's error that knows its reason
	if errors.As(err, &told) {
		reason, message = told.Waiting()
	}
	w.event(step, v1.EventTypeWarning, "Failed", "Error: "+message)
	w.failed(step.Container, reason, message, 0)
}

func (w *worker) postStarted(step pod.Step, err error) {
	hooks := w.know.Hooks[step.ID]
	hooks.PostStart = plan.Passed
	if err != nil {
		hooks.PostStart = plan.Failed
		// The event does not repeat what the hook said: that may hold secrets.
		w.event(step, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
		w.know.Failures[step.Container] = plan.Failure{Reason: "PostStartHookError", Message: err.Error()}
	}
	w.know.Hooks[step.ID] = hooks
}

// failed notes a failure under key and when to try again: after hint, or else after a doubling back-off.
func (w *worker) failed(key, reason, message string, hint time.Duration) {
	f := w.know.Failures[key]
	delay := hint
	if delay <= 0 {
		delay = min(stepBackOffMin<<min(f.Count, 10), stepBackOffMax)
	}
	w.know.Failures[key] = plan.Failure{Reason: reason, Message: message, Until: w.parts.Clock.Now().Add(delay), Count: f.Count + 1}
}

func (w *worker) event(step pod.Step, kind, reason, message string) {
	w.parts.Events.Event(podspec.ContainerReference(w.pod, step.Container, step.Kind), kind, reason, message)
}

// isNews says whether what differs from the last that was said under key, and notes it.
func (w *worker) isNews(key, what string) bool {
	known := w.said[key] == what
	w.said[key] = what
	return !known
}

// tellBackOff sends an event for each container that has come into back-off.
func (w *worker) tellBackOff(waits []pod.Wait) {
	for _, wait := range waits {
		if wait.Reason != plan.ReasonCrashLoop {
			continue
		}
		if kind, _, _ := podspec.FindContainer(w.pod, wait.Container); w.isNews("back-off "+wait.Container, wait.ID) {
			w.parts.Events.Eventf(podspec.ContainerReference(w.pod, wait.Container, kind), v1.EventTypeWarning, "BackOff",
				"Back-off restarting failed container %s in pod %s", wait.Container, podspec.Label(w.pod))
		}
	}
}
