package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Desired is one pod that should be here.
type Desired struct {
	Pod *v1.Pod // not to be changed
	// Mirror is a static pod's mirror as the API server has it; nil: not there, or not known yet.
	Mirror *v1.Pod
	// Resize is why Pod does not have the resources that its source asks for; nil where it has. The Manager's.
	Resize *Rejection
}

// Update is a change of what should be here.
type Update struct {
	Set    []Desired // new or changed
	Gone   []*v1.Pod // no source wants them any more; in their last version
	Strays []*v1.Pod // mirror pods whose static pod is not wanted any more
	// Synced says that every source has delivered its first list: from now on what is not wanted is an orphan. It stays so.
	Synced bool
}

// Feed delivers what should be here until ctx ends. *Source does.
type Feed interface {
	Run(ctx context.Context, out chan<- Update) error
}

// Wait is a container, or with Container "" the sandbox, that is not started yet.
type Wait struct {
	Container string
	ID        string // the attempt that has ended, for back-off
	Reason    string
	Message   string
}

// Phase is a worker's whole life. It only ever moves forward.
type Phase int

// Phases.
const (
	Syncing     Phase = iota // make the pod run
	Terminating              // stop what runs; the pod still has an API object that waits for us, or none at all
	Terminated               // nothing runs; status is final, volumes and engine leftovers are being removed
)

// String is the phase for people.
func (p Phase) String() string {
	return [...]string{"syncing", "terminating", "terminated"}[p]
}
