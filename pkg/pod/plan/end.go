package plan

import (
	"slices"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// terminate stops all containers at the same time, except sidecars: they stop after the others, in reverse order. The sandbox stops last.
// Sidecars' preStop hooks do not wait for their turn, as upstream.
func (p *planner) terminate() {
	running := p.running(nil)
	starting := p.memory.doing(pod.StartContainer, pod.CreateSandbox)
	mainRuns := starting
	last := -1 // index of the next sidecar to stop
	for _, c := range running {
		if at := p.sidecarIndex(c); at < 0 {
			mainRuns = true
		} else {
			last = max(last, at)
		}
	}
	for _, c := range running {
		_, spec, _ := podspec.FindContainer(p.pod, c.Name)
		at := p.sidecarIndex(c)
		turn := at < 0 || !mainRuns && at == last
		p.stop(c, spec, "Stopping container "+c.Name, podspec.StopGrace(p.pod), turn)
	}
	if len(running) > 0 || starting || p.memory.doing(pod.StopContainer) {
		return
	}
	live := false
	for _, s := range p.observed.Sandboxes {
		if s.Running {
			live = true
			p.onSandbox(pod.StopSandbox, s, "the pod has ended")
		}
	}
	p.out.Done = !live
}

// cleanUp removes what a terminated pod left: everything if the pod is gone, otherwise only what is no longer needed.
func (p *planner) cleanUp() {
	for _, c := range p.running(nil) { // a start that succeeded despite its cancellation
		p.stop(c, nil, "Stopping container "+c.Name, 0, true)
	}
	if !p.memory.End.Remove {
		p.dropOld()
		p.out.Done = len(p.out.Steps) == 0 && len(p.memory.Busy) == 0 && len(p.running(nil)) == 0
		return
	}
	for _, c := range p.observed.Containers {
		if c.State != pod.Running {
			p.remove(c, "the pod is gone")
		}
	}
	for _, s := range p.observed.Sandboxes {
		if !slices.ContainsFunc(p.observed.Containers, func(c pod.Container) bool { return c.SandboxID == s.ID && c.State == pod.Running }) {
			p.onSandbox(pod.RemoveSandbox, s, "the pod is gone")
		}
	}
	p.out.Done = len(p.observed.Containers) == 0 && len(p.observed.Sandboxes) == 0 && len(p.memory.Busy) == 0
}
