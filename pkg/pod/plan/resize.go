package plan

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// change is what lacks for a running container to have what it was granted.
type change struct {
	want    podspec.Resources
	update  bool // the engine holds it to something else
	restart bool // and its policy asks for a new start
}

// changeOf compares a running container with what pod grants it. last is its status as last reported: the memory request is
// known from nowhere else.
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

// resize brings a running container to what it was granted.
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

// update plans a change of what a container, or without ID the pod, is held to.
func (p *planner) update(step Step) {
	switch r := p.memory.Retries[UpdateKey(step.Of().ID)]; {
	case p.memory.busy(func(s Step) bool { return s.Verb() == step.Verb() && s.Of().ID == step.Of().ID }):
	case r.Waits(p.now):
		p.out.lookAt(r.Until)
	default:
		p.out.Steps = append(p.out.Steps, step)
	}
}

// growPod gives the pod's cgroup what its containers are about to be given: none can have more than the pod.
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

// shrinkPod takes from the pod's cgroup what its containers have given back.
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
