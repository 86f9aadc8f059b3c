package plan

import (
	"time"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Step is one thing to do next: an EngineStep or a WorkerStep. The steps of a plan are in the order in which they may start.
type Step interface {
	// Verb is the Action or Task, for logs.
	Verb() string
	// Of is the step's subject, in one form for both types.
	Of() Subject
	step()
}

// EngineStep is a step for the Runtime.
type EngineStep struct{ pod.Step }

// WorkerStep is a step that the worker carries out itself. It has a separate type so that it cannot be passed to the Runtime.
type WorkerStep struct {
	Task Task
	Subject
	Resources *podspec.Resources // for LimitPod
}

// Task is the verb of a WorkerStep.
type Task string

// Tasks.
const (
	ChooseRuntime Task = "choose-runtime" // read the handler of the pod's RuntimeClass
	AttachNetwork Task = "attach-network" // connect a sandbox or container to its network, through the Attacher
	PostStart     Task = "post-start"     // run the container's postStart hook
	PreStop       Task = "pre-stop"       // run the container's preStop hook, for at most Grace
	LimitPod      Task = "update-pod"     // change the limits of the pod's cgroup to Resources
)

// Subject is the object of a step, and the reason.
type Subject struct {
	Container string        // name in the spec; "" for a sandbox or the pod
	Kind      podspec.Kind  // of Container
	ID        string        // the engine's id; "" for the pod, and for what does not exist yet
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

// does reports whether s is a Runtime step with the given action.
func does(s Step, action pod.Action) bool {
	e, ok := s.(EngineStep)
	return ok && e.Action == action
}

// tasked reports whether s is a worker step with the given task.
func tasked(s Step, task Task) bool {
	own, ok := s.(WorkerStep)
	return ok && own.Task == task
}

// Starts reports whether s is part of a start. Most engine events of the pod during it are its own, and a complete observation follows it.
func Starts(s Step) bool {
	return does(s, pod.CreateSandbox) || does(s, pod.StartContainer) || tasked(s, AttachNetwork)
}
