package plan

import (
	"github.com/winkube/winkube/pkg/pod"
)

// attach plans to connect a sandbox, or the container that to names, to its network.
func (p *planner) attach(to Subject) {
	if p.memory.touching(to.ID) {
		return
	}
	if r := p.memory.Retries[MemberKey(to.ID)]; r.Waits(p.now) {
		p.out.wait(to.Container, "", r.Reason, r.Message, r.Until)
		return
	}
	to.Reason = "it has no network yet"
	p.out.Steps = append(p.out.Steps, WorkerStep{Task: AttachNetwork, Subject: to})
}

// attachContainers does the same for each running container that needs its own network.
func (p *planner) attachContainers() {
	for _, c := range p.running(func(c pod.Container) bool { return p.unattached(c.ID) }) {
		p.attach(Subject{Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt})
	}
}
