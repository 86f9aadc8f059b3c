package plan

import (
	"slices"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// terminate stops what runs: everything together, but the restartable init containers after the others and in reverse order, and the sandbox
// last. Their preStop hooks do not wait for their turn, as upstream.
func (p *planner) terminate() {
	running := p.running(nil)
	starting := p.memory.doing(pod.StartContainer, pod.CreateSandbox)
	mainRuns := starting
	last := -1 // the sidecar whose turn it is
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

// cleanUp removes what a terminated pod has left: everything when the pod is gone, else what is of no use any more.
func (p *planner) cleanUp() {
	for _, c := range p.running(nil) { // a start that came through after its cancellation
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
