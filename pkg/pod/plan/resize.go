package plan

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// change is the difference between a running container and what was granted.
type change struct {
	want    podspec.Resources
	update  bool // the engine applies other limits
	restart bool // its policy requires a restart
}

// changeOf compares a running container with what pod grants it. last is its last reported status, the only source of the memory request.
func changeOf(p *v1.Pod, kind podspec.Kind, c *v1.Container, have pod.Container, last *v1.PodStatus) change {
	if have.Resources == nil || kind == podspec.Ephemeral || have.State != pod.Running {
		return change{}
	}
	out := change{want: podspec.ResourcesOf(p, c)}
	cpu := !out.want.SameCPU(*have.Resources)
	memory := !out.want.SameMemory(*have.Resources)
	out.update = cpu || memory
	request := lastRequest(kind, c, have, last)
	out.restart = cpu && podspec.ResizePolicyOf(c, v1.ResourceCPU) == v1.RestartContainer ||
		podspec.ResizePolicyOf(c, v1.ResourceMemory) == v1.RestartContainer && (memory || request != nil && request.Cmp(*c.Resources.Requests.Memory()) != 0)
	return out
}

// resize applies granted resources to a running container.
func (p *planner) resize(kind podspec.Kind, spec *v1.Container, c pod.Container) {
	switch need := p.needs(kind, spec, c); {
	case need.restart:
		p.out.Replace = append(p.out.Replace, c.ID)
		p.stop(c, spec, fmt.Sprintf("Container %s resize requires restart", spec.Name), podspec.StopGrace(p.pod), true)
	case need.update && !p.growing:
		p.update(EngineStep{pod.Step{Action: pod.UpdateContainer, Container: c.Name, Kind: kind, ID: c.ID, Attempt: c.Attempt, Reason: resizeReason, Resources: &need.want}})
	}
}

const resizeReason = "the pod was resized"

// update plans to change the limits of a container, or of the pod if ID is "".
func (p *planner) update(step Step) {
	switch r := p.memory.Retries[UpdateKey(step.Of().ID)]; {
	case p.memory.busy(func(s Step) bool { return s.Verb() == step.Verb() && s.Of().ID == step.Of().ID }):
	case r.Waits(p.now):
		p.out.lookAt(r.Until)
	default:
		p.out.Steps = append(p.out.Steps, step)
	}
}

// growPod raises the limits of the pod's cgroup before its containers' limits: a container cannot have more than its pod.
func (p *planner) growPod() {
	have := p.seen.Cgroup
	if have == nil {
		return
	}
	if want := podspec.PodResourcesOf(p.pod).AtLeast(*have); want != *have && p.memory.Resize.Told != want {
		p.growing = true
		p.update(WorkerStep{Task: LimitPod, Subject: Subject{Reason: resizeReason}, Resources: &want})
	}
}

// shrinkPod lowers the limits of the pod's cgroup after its containers' limits.
func (p *planner) shrinkPod() {
	have, want := p.seen.Cgroup, podspec.PodResourcesOf(p.pod)
	if have == nil || p.growing || *have == want || p.memory.Resize.Told == want {
		return
	}
	for _, c := range p.running(nil) { // also those that are being stopped
		kind, spec, known := podspec.FindContainer(p.pod, c.Name)
		if !known {
			return
		}
		if need := p.needs(kind, spec, c); need.update || need.restart {
			return
		}
	}
	p.update(WorkerStep{Task: LimitPod, Subject: Subject{Reason: resizeReason}, Resources: &want})
}
