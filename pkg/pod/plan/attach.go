package plan

import (
	"github.com/winkube/winkube/pkg/pod"
)

// attach plans that a sandbox, or with Container in step a container, gets its network.
func (p *planner) attach(step pod.Step) {
	step.Action, step.Reason = pod.AttachNetwork, "it has no network yet"
	if p.know.busy(func(s pod.Step) bool { return s.ID == step.ID }) != nil {
		return
	}
	if f := p.know.Failures[step.ID]; f.Until.After(p.now) {
		p.wait(step.Container, "", f.Reason, f.Message, f.Until)
		return
	}
	p.out.Steps = append(p.out.Steps, step)
}

// attachContainers does it for containers that run, where each needs it.
func (p *planner) attachContainers() {
	for _, c := range p.running(func(c pod.Container) bool { return c.Unattached }) {
		p.attach(pod.Step{Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt})
	}
}
