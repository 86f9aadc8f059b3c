package worker

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// end records the result of a step. It runs in the loop.
func (s *steps) end(op *operation, err error) {
	if op.dropped || s.ctx.Err() != nil {
		return
	}
	if err != nil {
		of := op.step.Of()
		s.log(1, "Step failed", "action", op.step.Verb(), "container", of.Container, "id", of.ID, "err", err)
	}
	switch step := op.step.(type) {
	case plan.EngineStep:
		s.endEngineStep(step.Step, err)
	case plan.WorkerStep:
		s.endWorkerStep(step, err)
	}
}

func (s *steps) endEngineStep(step pod.Step, err error) {
	switch step.Action {
	case pod.CreateSandbox:
		s.sandboxMade(err)
	case pod.StartContainer:
		s.containerStarted(step, err)
	case pod.UpdateContainer:
		s.updated(plan.EngineStep{Step: step}.Of(), *step.Resources, err)
	default:
		if err == nil {
			s.succeeded(plan.MemberKey(step.ID))
			return
		}
		if step.Action == pod.StopContainer || step.Action == pod.StopSandbox {
			s.event(v1.EventTypeWarning, "FailedKillPod", "error killing pod: "+err.Error())
		}
		s.failed(plan.MemberKey(step.ID), "", err.Error(), 0)
	}
}

func (s *steps) endWorkerStep(step plan.WorkerStep, err error) {
	switch step.Task {
	case plan.ChooseRuntime:
		s.sandboxMade(err)
	case plan.AttachNetwork: // for users, part of creating the sandbox
		if err == nil {
			s.succeeded(plan.MemberKey(step.ID))
			return
		}
		s.event(v1.EventTypeWarning, pod.ReasonSandbox, "Failed to create pod sandbox: "+err.Error())
		s.failed(plan.MemberKey(step.ID), pod.ReasonSandbox, err.Error(), 0)
	case plan.PostStart:
		s.postStartEnded(step.Subject, err)
	case plan.PreStop:
		s.seen.Memory.Note(step.ID).Hooks.PreStop = true
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			s.containerEvent(step.Subject, v1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
		}
	case plan.LimitPod:
		s.updated(step.Subject, *step.Resources, err)
	}
}

// sandboxMade records the result of creating a sandbox, or of the work before it.
func (s *steps) sandboxMade(err error) {
	if err == nil {
		s.succeeded(plan.SandboxKey)
		return
	}
	var start *pod.StartError
	if errors.As(err, &start) { // its Event has been sent
		s.failed(plan.SandboxKey, start.Reason, start.Message, start.RetryAfter)
		return
	}
	s.event(v1.EventTypeWarning, pod.ReasonSandbox, "Failed to create pod sandbox: "+err.Error())
	s.failed(plan.SandboxKey, pod.ReasonSandbox, err.Error(), 0)
}

func (s *steps) containerStarted(step pod.Step, err error) {
	of := plan.EngineStep{Step: step}.Of()
	if err == nil {
		s.succeeded(plan.StartKey(step.Container))
		s.containerEvent(of, v1.EventTypeNormal, "Created", "Container created")
		s.containerEvent(of, v1.EventTypeNormal, "Started", "Container started")
	}
	if delay, ok := plan.StartDelay(s.pod, &s.seen, step.Container, step.Attempt); ok {
		s.seen.Memory.Delays[plan.ContainerName(step.Container)] = delay
	}
	if err == nil {
		return
	}
	var start *pod.StartError
	if errors.As(err, &start) { // its Event has been sent
		reason, message := start.Waiting()
		s.failed(plan.StartKey(step.Container), reason, message, start.RetryAfter)
		return
	}
	reason, message := "RunContainerError", err.Error()
	var told interface {
		Waiting() (reason, message string)
	} // an engine error with its own reason
	if errors.As(err, &told) {
		reason, message = told.Waiting()
	}
	s.containerEvent(of, v1.EventTypeWarning, "Failed", "Error: "+message)
	s.failed(plan.StartKey(step.Container), reason, message, 0)
}

func (s *steps) postStartEnded(of plan.Subject, err error) {
	run := s.seen.Memory.Note(of.ID)
	run.Hooks.PostStart = plan.Passed
	if err != nil {
		run.Hooks.PostStart = plan.Failed
		// The Event omits the hook's output, which may contain secrets.
		s.containerEvent(of, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
		s.seen.Memory.Retries[plan.StartKey(of.Container)] = plan.Retry{Reason: "PostStartHookError", Message: err.Error()}
	}
}
