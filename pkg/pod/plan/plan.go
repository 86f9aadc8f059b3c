// Package plan decides a pod's next steps and its status. Both decisions are pure: equal inputs give equal results.
//
//	Plan(pod, seen, now)   -> Decision: steps, waits, when to look again
//	Status(pod, seen, now) -> v1.PodStatus
//
// It imports nothing that could read, write, wait or log; test/repo enforces this.
package plan

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Decision is what Plan decided: what to do now, what is waiting, and when to look again if nothing happens earlier.
type Decision struct {
	Steps []Step
	Waits []pod.Wait
	// Next is when to plan again; zero: when something changes.
	Next time.Time
	// Done means that this phase is complete. Syncing: nothing runs and nothing will be restarted. Terminating: nothing runs. Terminated:
	// nothing is left to remove.
	Done bool
	// End, if set, is why the pod must end. Phase Syncing only.
	End *pod.Rejection
	// Replace are the ids of containers that are being stopped and will be started again regardless of the restart policy.
	Replace []string
}

// Reasons and messages that users know from upstream.
const (
	ReasonDeadline      = "DeadlineExceeded"
	messageDeadline     = "Pod was active on the node longer than the specified deadline"
	reasonUnsupported   = "PodFeatureUnsupported"
	ReasonCrashLoop     = "CrashLoopBackOff"
	reasonRestartingAll = "RestartingAllContainers"
)

// Plan decides what to do next for pod. It is pure and does not repeat steps in flight. seen.Engine must be observed after the end of the
// last step that is no longer in seen.Memory.Busy.
func Plan(desired *v1.Pod, seen Seen, now time.Time) Decision {
	p := &planner{facts: newFacts(desired, &seen, now)}
	switch seen.Memory.Phase {
	case pod.Syncing:
		p.sync()
	case pod.Terminating:
		p.terminate()
	default:
		p.cleanUp()
	}
	return p.out
}

// lookAt requests a new plan at t.
func (d *Decision) lookAt(t time.Time) {
	if d.Next.IsZero() || t.Before(d.Next) {
		d.Next = t
	}
}

func (d *Decision) wait(container, id, reason, message string, until time.Time) {
	d.Waits = append(d.Waits, pod.Wait{Container: container, ID: id, Reason: reason, Message: message})
	d.lookAt(until)
}

// planner makes one Decision.
type planner struct {
	*facts
	out     Decision
	growing bool // the pod's cgroup must grow before its containers can
}

func (p *planner) sync() {
	if p.chooseRuntime() {
		return
	}
	if p.out.End = p.mustEnd(&p.out); p.out.End != nil {
		return
	}
	p.dropOld()
	box, ok := p.sandbox()
	if !ok || p.restartAll() {
		return
	}
	p.attachContainers()
	p.growPod()
	if p.seen.NeedsSandbox(p.pod) {
		p.ephemeral(box)
	}
	if p.initialize(box) {
		p.apps(box)
	}
	p.shrinkPod()
	if p.out.Done {
		p.out.Steps = slices.DeleteFunc(p.out.Steps, func(s Step) bool { return does(s, pod.StartContainer) })
	}
}

// classReason precedes the name of the class in the reason of a ChooseRuntime.
const classReason = "the pod's RuntimeClass is "

// chooseRuntime plans to read the handler of the pod's RuntimeClass if the need for a sandbox depends on it. True: it is not known yet.
func (p *planner) chooseRuntime() bool {
	class := p.pod.Spec.RuntimeClassName
	if p.seen.Node.Platform.OS != "windows" || class == nil || *class == "" || p.memory.Handler != nil {
		return false
	}
	if f := p.memory.Retries[SandboxKey]; f.Waits(p.now) {
		p.out.wait("", "", f.Reason, f.Message, f.Until)
	} else if !p.memory.busy(func(s Step) bool { return tasked(s, ChooseRuntime) }) {
		p.out.Steps = append(p.out.Steps, WorkerStep{Task: ChooseRuntime, Subject: Subject{Reason: classReason + *class}})
	}
	return true
}

// sandbox makes the pod's sandbox ready. If it is, ok is true and box is its id; box is "" on hosts without sandboxes.
func (p *planner) sandbox() (box string, ok bool) {
	if !p.seen.NeedsSandbox(p.pod) {
		return "", true
	}
	current := p.observed.NewestSandbox()
	if current != nil && current.Running && p.unattached(current.ID) && !p.left(*current) {
		p.attach(Subject{ID: current.ID, Attempt: current.Attempt})
		return "", false
	}
	if current != nil && p.usable(*current) {
		p.dropSandboxes(current.ID)
		return current.ID, true
	}
	for _, c := range p.running(nil) {
		_, spec, _ := podspec.FindContainer(p.pod, c.Name)
		p.stop(c, spec, "Stopping container "+c.Name, podspec.StopGrace(p.pod), true)
	}
	if len(p.running(nil)) > 0 || p.memory.doing(pod.StartContainer, pod.StopContainer) {
		return "", false
	}
	if !p.wantsSandbox() {
		p.out.Done = true
		return "", false
	}
	p.dropSandboxes("")
	if p.memory.doing(pod.CreateSandbox) {
		return "", false
	}
	if f := p.memory.Retries[SandboxKey]; f.Waits(p.now) {
		p.out.wait("", "", f.Reason, f.Message, f.Until)
		return "", false
	}
	step := pod.Step{Action: pod.CreateSandbox, Reason: "the pod has no sandbox"}
	switch {
	case current != nil && current.Unstarted: // the engine finds it by name, and it may be about to run
		step.Attempt, step.Reason = current.Attempt, "the sandbox was never started"
	case current != nil:
		step.Attempt, step.Reason = current.Attempt+1, "Pod sandbox changed, it will be killed and re-created."
	}
	p.out.Steps = append(p.out.Steps, EngineStep{step})
	return "", false
}

// dropSandboxes stops and removes all sandboxes without running containers, except keep.
func (p *planner) dropSandboxes(keep string) {
	for _, s := range p.observed.Sandboxes {
		if s.ID == keep || len(p.running(func(c pod.Container) bool { return c.SandboxID == s.ID })) > 0 {
			continue
		}
		if s.Running {
			p.onSandbox(pod.StopSandbox, s, "an older sandbox of the pod")
		} else if keep != "" {
			p.onSandbox(pod.RemoveSandbox, s, "an older sandbox of the pod")
		}
	}
}

func (p *planner) onSandbox(action pod.Action, s pod.Sandbox, reason string) {
	if p.memory.touching(s.ID) || p.failedLately(s.ID) {
		return
	}
	p.out.Steps = append(p.out.Steps, EngineStep{pod.Step{Action: action, ID: s.ID, Attempt: s.Attempt, Reason: reason}})
}

// failedLately reports that an earlier step on this sandbox or container failed and that it is too early for the next try.
func (p *planner) failedLately(id string) bool {
	r := p.memory.Retries[MemberKey(id)]
	if !r.Waits(p.now) {
		return false
	}
	p.out.lookAt(r.Until)
	return true
}

// start plans the next attempt of a container, unless back-off or an earlier failure delays it.
func (p *planner) start(kind podspec.Kind, c *v1.Container, list []past, reason string) {
	if p.onContainer(c.Name) {
		return
	}
	if f := p.memory.Retries[StartKey(c.Name)]; f.Waits(p.now) {
		p.out.wait(c.Name, "", f.Reason, f.Message, f.Until)
		return
	}
	if until, delay := backOff(p.seen, c, list); until.After(p.now) && until.Sub(p.now) <= delay+clockSkew {
		p.out.wait(c.Name, list[0].ID, ReasonCrashLoop, crashMessage(p.pod, c.Name, delay), until)
		return
	}
	p.out.Steps = append(p.out.Steps, EngineStep{pod.Step{
		Action: pod.StartContainer, Container: c.Name, Kind: kind, Attempt: nextAttempt(p.observed, &p.memory.Last, kind, c.Name), Reason: reason,
	}})
}

// clockSkew is how far the engine's clock may be ahead. An exit time further in the future means that the clock was set back; it causes no
// wait.
const clockSkew = time.Minute

// backOff is when an exited container may start again, and the delay that leads to this time.
func backOff(seen *Seen, c *v1.Container, list []past) (until time.Time, delay time.Duration) {
	if len(list) == 0 {
		return time.Time{}, 0
	}
	var applied *time.Duration
	if d, ok := seen.Memory.Delays[ContainerName(c.Name)]; ok {
		applied = &d
	}
	delay = crashDelay(list, podspec.Hash(c), applied, seen.Node.CrashBackOff)
	ended := list[0].FinishedAt
	if ended.IsZero() {
		ended = list[0].CreatedAt
	}
	return ended.Add(delay), delay
}

// StartDelay is the back-off that an attempt of a container was started with, calculated from the attempts before it. ok is false if the
// spec has no such container or no earlier attempt is known.
func StartDelay(desired *v1.Pod, seen *Seen, name string, attempt int) (delay time.Duration, ok bool) {
	kind, spec, ok := podspec.FindContainer(desired, name)
	if !ok {
		return 0, false
	}
	list := attempts(seen.Engine, &seen.Memory.Last, kind, spec)
	if len(list) == 0 || list[0].Attempt >= attempt {
		return 0, false
	}
	_, delay = backOff(seen, spec, list)
	return delay, true
}

func crashMessage(pod *v1.Pod, name string, delay time.Duration) string {
	return fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, name, podspec.Label(pod))
}

// stop plans the end of a running container: first its preStop hook, then the stop with the rest of its grace period. With turn false, it
// plans only the hook until the grace period ends. A stop in flight that would exceed the remaining time is planned again.
func (p *planner) stop(c pod.Container, spec *v1.Container, reason string, grace time.Duration, turn bool) {
	begun := p.memory.Run(c.ID).Stop
	deadline := begun
	if begun.IsZero() {
		deadline = p.now.Add(grace)
	}
	if d := p.memory.End.Deadline; p.memory.Phase != pod.Syncing && d.Before(deadline) {
		deadline = d
	}
	if p.failedLately(c.ID) {
		return
	}
	left := deadline.Sub(p.now)
	inFlight := func(match func(Step) bool) bool {
		return p.memory.busy(func(s Step) bool { return s.Of().Container == c.Name && match(s) })
	}
	switch {
	case inFlight(func(s Step) bool { return does(s, pod.StopContainer) }):
		if !deadline.Before(begun) {
			return
		}
	case left > 0 && inFlight(func(s Step) bool { return tasked(s, PreStop) }):
		p.out.lookAt(deadline)
		return
	case p.starting(c.Name):
		return
	}
	switch {
	case spec != nil && spec.Lifecycle != nil && spec.Lifecycle.PreStop != nil && !p.memory.Run(c.ID).Hooks.PreStop && left > 0:
		p.out.Steps = append(p.out.Steps, WorkerStep{Task: PreStop,
			Subject: Subject{Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt, Reason: reason, Grace: left}})
	case !turn && left > 0:
		p.out.lookAt(deadline)
	default:
		p.out.Steps = append(p.out.Steps, EngineStep{pod.Step{
			Action: pod.StopContainer, Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt, Reason: reason, Grace: max(left, minGrace),
		}})
	}
}
