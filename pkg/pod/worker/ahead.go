package worker

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// aheadPatience limits how long the inputs of a container may take while its sandbox starts. Creating the container afterwards is limited by the
// engine's deadlines.
const aheadPatience = time.Second

// prepared is what was done for the start of a container while its sandbox started.
type prepared struct {
	sandbox string
	attempt int
	inputs  *pod.Inputs
	err     error // a *pod.StartError, whose Event has been sent; inputs is nil then
}

// firsts are the containers that start as soon as the sandbox of step runs; none if nothing can be prepared for them.
func (s *steps) firsts(step pod.Step, now time.Time) []pod.Step {
	if s.cfg.Platform.OS != "linux" || s.pod.Spec.HostNetwork {
		return nil
	}
	return plan.Ahead(s.pod, s.seen, step, now)
}

// prepareAhead resolves and creates the containers of starts, in the sandbox that has just been created. What fails is tried again by the start
// itself.
func prepareAhead(ctx context.Context, parts *Parts, desired *v1.Pod, starts []pod.Step, sandbox, runtime, parent string) map[string]prepared {
	out := map[string]prepared{}
	for _, step := range starts {
		_, spec, _ := podspec.FindContainer(desired, step.Container)
		at := pod.Attempt{Kind: step.Kind, Number: step.Attempt, SandboxID: sandbox, Runtime: runtime}
		quick, cancel := context.WithTimeout(ctx, aheadPatience)
		inputs, err := parts.Resolver.Ahead(quick, desired, spec, at)
		cancel()
		var refused *pod.StartError
		switch {
		case errors.As(err, &refused):
			out[step.Container] = prepared{sandbox: sandbox, attempt: step.Attempt, err: err}
			continue
		case err != nil || inputs == nil:
			continue
		}
		inputs.CgroupParent = parent
		step.Inputs = inputs
		if err := parts.Runtime.Prepare(ctx, desired, step); err != nil {
			klog.V(2).InfoS("Cannot create a container while its sandbox starts", "pod", klog.KObj(desired), "container", step.Container, "reason", err.Error())
		}
		out[step.Container] = prepared{sandbox: sandbox, attempt: step.Attempt, inputs: inputs}
	}
	return out
}

// takePrepared returns what was prepared for a start, once; nil if nothing was, or for another one.
func (s *steps) takePrepared(name string, at pod.Attempt) *prepared {
	p, ok := s.prepared[name]
	delete(s.prepared, name)
	if !ok || p.sandbox != at.SandboxID || p.attempt != at.Number {
		return nil
	}
	return &p
}

// inputs returns the inputs of a start: the prepared ones, brought up to date, or new ones.
func inputs(ctx context.Context, parts *Parts, desired *v1.Pod, spec *v1.Container, at pod.Attempt, ready *prepared) (*pod.Inputs, error) {
	switch {
	case ready == nil:
		return parts.Resolver.Container(ctx, desired, spec, at)
	case ready.err != nil:
		return nil, ready.err
	}
	return ready.inputs, parts.Resolver.Addressed(desired, at)
}
