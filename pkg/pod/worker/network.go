package worker

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// complete has the Attacher add what it knows, where there is one.
func (p *Parts) complete(pod *v1.Pod, observed *pod.Observed) {
	if p.Attacher != nil {
		p.Attacher.Complete(pod, observed)
	}
}

// expose has the pod's hostPorts served, where somebody does that.
func (p *Parts) expose(uid types.UID, observed pod.Observed) {
	if p.HostPorts != nil {
		p.HostPorts.Serve(uid, observed)
	}
}

// exposeAll does it for what is found at the start, and returns that: the pods' workers begin only when a source has told of them.
func (p *Parts) exposeAll(found map[types.UID]pod.Observed) map[types.UID]pod.Observed {
	for uid, observed := range found {
		p.complete(orphanPod(uid, observed), &observed)
		p.expose(uid, observed)
	}
	return found
}

// networkStep is the slow part of a step that has to do with the pod's network: what ends gives it back before.
func (w *worker) networkStep(step pod.Step) func(context.Context) error {
	p, parts := w.pod, w.parts
	at := w.member(step.ID)
	return func(ctx context.Context) error {
		if step.Action == pod.AttachNetwork {
			return parts.Attacher.Attach(ctx, p, at)
		}
		if parts.Attacher != nil {
			if err := parts.Attacher.Detach(ctx, at); err != nil {
				return err
			}
		}
		return parts.Runtime.Apply(ctx, p, step)
	}
}

// member is the sandbox or container of that id as last observed.
func (w *worker) member(id string) pod.Member {
	if i := slices.IndexFunc(w.observed.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id }); i >= 0 {
		return pod.Member{ID: id, SandboxID: id, PID: w.observed.Sandboxes[i].PID}
	}
	for _, c := range w.observed.Containers {
		if c.ID == id {
			return pod.Member{ID: id, SandboxID: c.SandboxID, PID: c.HostPID}
		}
	}
	return pod.Member{ID: id}
}

// attachSettled takes in how an AttachNetwork ended. To users it is a part of making the sandbox.
func (w *worker) attachSettled(step pod.Step, err error) {
	if err == nil {
		delete(w.know.Failures, step.ID)
		return
	}
	w.parts.Events.Eventf(podspec.Reference(w.pod), v1.EventTypeWarning, pod.ReasonSandbox, "Failed to create pod sandbox: %v", err)
	w.failed(step.ID, pod.ReasonSandbox, err.Error(), 0)
}
