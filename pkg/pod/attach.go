package pod

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// complete has the Attacher add what it knows, where there is one.
func (p *Parts) complete(pod *v1.Pod, observed *Observed) {
	if p.Attacher != nil {
		p.Attacher.Complete(pod, observed)
	}
}

// expose has the pod's hostPorts served, where somebody does that.
func (p *Parts) expose(uid types.UID, observed Observed) {
	if p.HostPorts != nil {
		p.HostPorts.Serve(uid, observed)
	}
}

// exposeAll does it for what is found at the start, and returns that: the pods' workers begin only when a source has told of them.
func (p *Parts) exposeAll(found map[types.UID]Observed) map[types.UID]Observed {
	for uid, observed := range found {
		p.complete(orphanPod(uid, observed), &observed)
		p.expose(uid, observed)
	}
	return found
}

// attach plans that a sandbox, or with Container in step a container, gets its network.
func (p *planner) attach(step Step) {
	step.Action, step.Reason = AttachNetwork, "it has no network yet"
	if p.know.busy(func(s Step) bool { return s.ID == step.ID }) != nil {
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
	for _, c := range p.running(func(c Container) bool { return c.Unattached }) {
		p.attach(Step{Container: c.Name, Kind: c.Kind, ID: c.ID, Attempt: c.Attempt})
	}
}

// networkStep is the slow part of a step that has to do with the pod's network: what ends gives it back before.
func (w *worker) networkStep(step Step) func(context.Context) error {
	pod, parts := w.pod, w.parts
	at := w.member(step.ID)
	return func(ctx context.Context) error {
		if step.Action == AttachNetwork {
			return parts.Attacher.Attach(ctx, pod, at)
		}
		if parts.Attacher != nil {
			if err := parts.Attacher.Detach(ctx, at); err != nil {
				return err
			}
		}
		return parts.Runtime.Apply(ctx, pod, step)
	}
}

// member is the sandbox or container of that id as last observed.
func (w *worker) member(id string) Member {
	if i := slices.IndexFunc(w.observed.Sandboxes, func(s Sandbox) bool { return s.ID == id }); i >= 0 {
		return Member{ID: id, SandboxID: id, PID: w.observed.Sandboxes[i].PID}
	}
	for _, c := range w.observed.Containers {
		if c.ID == id {
			return Member{ID: id, SandboxID: c.SandboxID, PID: c.HostPID}
		}
	}
	return Member{ID: id}
}

// attachSettled takes in how an AttachNetwork ended. To users it is a part of making the sandbox.
func (w *worker) attachSettled(step Step, err error) {
	if err == nil {
		delete(w.know.Failures, step.ID)
		return
	}
	w.parts.Events.Eventf(podspec.Reference(w.pod), v1.EventTypeWarning, ReasonSandbox, "Failed to create pod sandbox: %v", err)
	w.failed(step.ID, ReasonSandbox, err.Error(), 0)
}
