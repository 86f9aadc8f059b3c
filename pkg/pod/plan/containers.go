package plan

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// failedPostStart is the reason for stopping a container whose postStart hook failed.
const failedPostStart = "FailedPostStartHook"

// keep handles a running container: it finishes its start, and stops it if it must not continue. in says whether it runs in the pod's
// current sandbox.
func (p *planner) keep(kind podspec.Kind, spec *v1.Container, c pod.Container, in bool) {
	begun := !p.memory.Run(c.ID).Stop.IsZero()
	verdict, hooks := p.memory.Run(c.ID).Probes, p.memory.Run(c.ID).Hooks
	title := "Container"
	if kind == podspec.Init {
		title = "Init container"
	}
	kill := func(why string, probe *v1.Probe, back bool) {
		why = fmt.Sprintf("%s %s %s", title, spec.Name, why)
		if back {
			why += ", will be restarted"
			p.out.Replace = append(p.out.Replace, c.ID)
		}
		p.stop(c, spec, why, podspec.ProbeGrace(p.pod, probe), true)
	}
	switch {
	case !in:
		p.stop(c, spec, "Stopping container "+spec.Name, podspec.StopGrace(p.pod), true)
	case kind != podspec.Ephemeral && c.Hash != podspec.Hash(spec):
		kill("definition changed", nil, true)
	case hooks.PostStart == Failed:
		p.stop(c, spec, failedPostStart, podspec.StopGrace(p.pod), true)
	case verdict.Liveness == Failed:
		kill("failed liveness probe", spec.LivenessProbe, podspec.RestartsAfterKill(p.pod, spec))
	case verdict.Startup == Failed:
		kill("failed startup probe", spec.StartupProbe, podspec.RestartsAfterKill(p.pod, spec))
	case begun:
		p.stop(c, spec, "Stopping container "+spec.Name, podspec.StopGrace(p.pod), true)
	case !p.memory.PostStarted(spec, c.ID) && !p.onContainer(c.Name):
		p.out.Steps = append(p.out.Steps, WorkerStep{Task: PostStart,
			Subject: Subject{Container: c.Name, Kind: kind, ID: c.ID, Attempt: c.Attempt, Reason: "the container was started"}})
	default:
		p.resize(kind, spec, c)
	}
}

func inSandbox(box string, c pod.Container) bool { return box == "" || c.SandboxID == box }

func (p *planner) ephemeral(box string) {
	for i := range p.pod.Spec.EphemeralContainers {
		c := (*v1.Container)(&p.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		list := p.attempts(podspec.Ephemeral, c)
		switch {
		case len(list) == 0:
			p.start(podspec.Ephemeral, c, nil, "the container was never started")
		case list[0].State == pod.Running:
			p.keep(podspec.Ephemeral, c, list[0].Container, inSandbox(box, list[0].Container))
		}
	}
}

// initialize runs the init containers in order and keeps sidecars running. True: app containers may start.
func (p *planner) initialize(box string) bool {
	inits := p.pod.Spec.InitContainers
	ready := false
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		list := p.attempts(podspec.App, c)
		ready = ready || len(list) > 0 && inSandbox(box, list[0].Container) ||
			p.starting(c.Name)
	}
	// Every init container before the last one that started in this sandbox has completed, even if the engine no longer has it.
	reached := -1
	for i := range inits {
		if list := p.attempts(podspec.Init, &inits[i]); len(list) > 0 && inSandbox(box, list[0].Container) {
			reached = i
		}
	}
	if ready {
		reached = len(inits)
	}
	for i := range inits {
		c := &inits[i]
		list := p.attempts(podspec.Init, c)
		here := len(list) > 0 && inSandbox(box, list[0].Container)
		switch {
		case podspec.IsSidecar(c):
			if !p.sidecar(c, list, here) && i >= reached {
				return false
			}
		case i < reached:
			continue
		default:
			if !p.initOnce(c, list, here) {
				return false
			}
		}
	}
	return true
}

// sidecar keeps a restartable init container running. True: it has started, and the next containers may start.
func (p *planner) sidecar(c *v1.Container, list []past, here bool) bool {
	if len(list) > 0 && list[0].State == pod.Running {
		p.keep(podspec.Init, c, list[0].Container, here)
		return here && p.memory.Started(c, list[0].ID)
	}
	reason := "the container was never started"
	if len(list) > 0 {
		reason = exitReason(list[0])
	}
	p.start(podspec.Init, c, list, reason)
	return false
}

// initOnce runs an init container until it succeeds. True: it has succeeded.
func (p *planner) initOnce(c *v1.Container, list []past, here bool) bool {
	switch {
	case len(list) == 0:
		p.start(podspec.Init, c, nil, "the container was never started")
	case list[0].State == pod.Running:
		p.keep(podspec.Init, c, list[0].Container, here)
	case here && list[0].ExitCode == 0 && !p.memory.Run(list[0].ID).Replace:
		return true
	case here && !p.comesBack(podspec.Init, c, list[0]):
		p.out.Done = true // the pod has failed
	case here:
		p.start(podspec.Init, c, list, exitReason(list[0]))
	default:
		p.start(podspec.Init, c, list, "the pod has a new sandbox")
	}
	return false
}

func exitReason(ended past) string {
	if ended.remembered != nil && ended.remembered.Reason == reasonUnknown {
		return "the container disappeared"
	}
	return fmt.Sprintf("the container exited with code %d", ended.ExitCode)
}

// apps starts app containers and keeps them running. If none runs or will run again, the pod is done.
func (p *planner) apps(box string) {
	alive := false
	for i := range p.pod.Spec.Containers {
		c := &p.pod.Spec.Containers[i]
		list := p.attempts(podspec.App, c)
		switch {
		case len(list) > 0 && list[0].State == pod.Running:
			alive = true
			p.keep(podspec.App, c, list[0].Container, inSandbox(box, list[0].Container))
		case len(list) == 0:
			alive = true
			p.start(podspec.App, c, nil, "the container was never started")
		case p.comesBack(podspec.App, c, list[0]):
			alive = true
			p.start(podspec.App, c, list, exitReason(list[0]))
		default:
			alive = alive || p.onContainer(c.Name)
		}
	}
	p.out.Done = !alive
}

// restartAll restarts the pod in its sandbox if a container's rule says so. It stops all containers and then removes them, the one with the
// rule last; then the pod starts again. True: this is in progress.
func (p *planner) restartAll() bool {
	var source string
	if !podspec.MayRestartAll(p.pod) {
		return false
	}
	for kind, c := range podspec.Containers(p.pod) {
		if kind == podspec.Ephemeral {
			continue
		}
		if list := p.attempts(kind, c); len(list) > 0 && list[0].remembered == nil && list[0].State == pod.Exited && podspec.RestartsAll(c, list[0].ExitCode) {
			source = list[0].ID
			break
		}
	}
	if source == "" {
		return false
	}
	for _, c := range p.running(func(c pod.Container) bool { return c.Kind != podspec.Ephemeral }) {
		_, spec, _ := podspec.FindContainer(p.pod, c.Name)
		p.stop(c, spec, "Stopping container "+c.Name, podspec.StopGrace(p.pod), true)
	}
	if len(p.running(func(c pod.Container) bool { return c.Kind != podspec.Ephemeral })) > 0 || len(p.memory.Busy) > 0 {
		return true
	}
	rest := slices.DeleteFunc(slices.Clone(p.observed.Containers), func(c pod.Container) bool { return c.Kind == podspec.Ephemeral || c.ID == source })
	if len(rest) == 0 {
		rest = slices.DeleteFunc(slices.Clone(p.observed.Containers), func(c pod.Container) bool { return c.ID != source })
	}
	p.out.Steps = nil // dropOld may have planned the same removals
	for _, c := range rest {
		p.remove(c, reasonRestartingAll)
	}
	return true
}

// dropOld removes attempts that are no longer needed. It keeps the latest attempt of each container and as many earlier ones as DeadLimits
// allows (`kubectl logs --previous` reads one). It removes containers that were never started, except the next attempt, and those that are
// not in the spec.
func (p *planner) dropOld() {
	limits := p.seen.Node.Dead.OrDefault()
	all := slices.Clone(p.observed.Containers)
	slices.SortStableFunc(all, func(a, b pod.Container) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Attempt, a.Attempt))
	})
	seen := map[string]int{}
	for _, c := range all {
		_, spec, known := podspec.FindContainer(p.pod, c.Name)
		seen[c.Name]++
		switch {
		case c.State == pod.Running:
			if !known || seen[c.Name] > 1 {
				p.stop(c, spec, "Stopping container "+c.Name, podspec.StopGrace(p.pod), true)
			}
		case !known:
			p.remove(c, "the pod has no such container any more")
		case !c.Started() && (seen[c.Name] > 1 || p.memory.Phase != pod.Syncing):
			p.remove(c, "a leftover that was never started")
		case p.memory.Run(c.ID).Surplus:
			p.remove(c, "the node keeps too many containers that have ended")
		case limits.PerContainer >= 0 && seen[c.Name] > limits.PerContainer+1 && !limits.Young(c, p.now):
			p.remove(c, "an old attempt")
		}
	}
}

func (p *planner) remove(c pod.Container, reason string) {
	if p.memory.touching(c.ID) || p.failedLately(c.ID) {
		return
	}
	if p.starting(c.Name) && !c.Started() {
		return // that start may adopt it
	}
	p.out.Steps = append(p.out.Steps, EngineStep{pod.Step{Action: pod.RemoveContainer, Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt, Reason: reason}})
}
