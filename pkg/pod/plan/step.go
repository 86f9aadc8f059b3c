package plan

import (
	"time"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Step is one thing to do next: an EngineStep or a WorkerStep, and nothing else. Steps of one Plan stand in the order in which they may
// begin.
type Step interface {
	// Verb is the Action or Task, for people.
	Verb() string
	// Of is what it is done to, in one form for both.
	Of() Subject
	step()
}

// EngineStep is a step that the Runtime does.
type EngineStep struct{ pod.Step }

// WorkerStep is a step that the worker does itself. It is of another type than the engine's, so that the Runtime cannot be given one.
type WorkerStep struct {
	Task Task
	Subject
	Resources *podspec.Resources // of LimitPod
}

// Task is the verb of a WorkerStep.
type Task string

// What the worker does itself.
const (
	ChooseRuntime Task = "choose-runtime" // read the handler of the pod's RuntimeClass
	AttachNetwork Task = "attach-network" // give a sandbox or container its network, by the Attacher
	PostStart     Task = "post-start"     // run the container's postStart hook
	PreStop       Task = "pre-stop"       // run the container's preStop hook, for Grace at most
	LimitPod      Task = "update-pod"     // hold the pod's cgroup to other Resources
)

// Subject is what a step is done to, and why.
type Subject struct {
	Container string        // name in the spec; "" for a sandbox or the pod
	Kind      podspec.Kind  // of Container
	ID        string        // the engine's id; "" for what is yet to be made, and the pod
	Attempt   int           // of the sandbox or container
	Grace     time.Duration // for stop-container and pre-stop
	Reason    string        // why, in words for logs, Events and `kubelet plan`
}

func (EngineStep) step() {}
func (WorkerStep) step() {}

// Verb implements Step.
func (s EngineStep) Verb() string { return string(s.Action) }

// Verb implements Step.
func (s WorkerStep) Verb() string { return string(s.Task) }

// Of implements Step.
func (s EngineStep) Of() Subject {
	return Subject{Container: s.Container, Kind: s.Kind, ID: s.ID, Attempt: s.Attempt, Grace: s.Grace, Reason: s.Reason}
}

// Of implements Step.
func (s WorkerStep) Of() Subject { return s.Subject }

// does says whether s is a step of the Runtime with that action.
func does(s Step, action pod.Action) bool {
	e, ok := s.(EngineStep)
	return ok && e.Action == action
}

// tasked says whether s is a step of the worker with that task.
func tasked(s Step, task Task) bool {
	own, ok := s.(WorkerStep)
	return ok && own.Task == task
}

// Starts says whether s is part of a start: most news of the pod is then of that step, and at its end everything is looked at.
func Starts(s Step) bool {
	return does(s, pod.CreateSandbox) || does(s, pod.StartContainer) || tasked(s, AttachNetwork)
}
