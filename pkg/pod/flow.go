package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Desired is one pod that should run on this node.
type Desired struct {
	Pod *v1.Pod // read-only
	// Mirror is a static pod's mirror pod on the API server; nil if there is none or it is not known yet.
	Mirror *v1.Pod
	// Resize is why Pod does not have the resources that its source requests; nil if it has them. The Manager sets it.
	Resize *Rejection
}

// Update is a change to the set of desired pods.
type Update struct {
	Set    []Desired // new or changed
	Gone   []*v1.Pod // no source wants them any more; last known version
	Strays []*v1.Pod // mirror pods whose static pod is no longer wanted
	// Synced means that every source has delivered its first list. From then on, pods that no source wants are orphans. It never becomes
	// false again.
	Synced bool
}

// Feed delivers the desired pods until ctx ends. *Source implements it.
type Feed interface {
	Run(ctx context.Context, out chan<- Update) error
}

// Wait is a container that has not started yet, or the sandbox if Container is "".
type Wait struct {
	Container string
	ID        string // the attempt that ended, for back-off
	Reason    string
	Message   string
}

// Phase is a stage in a worker's life. It only moves forward.
type Phase int

// Phases.
const (
	Syncing     Phase = iota // make the pod run
	Terminating              // stop what runs; the pod's API object waits for this, or no longer exists
	Terminated               // nothing runs; status is final, volumes and engine leftovers are being removed
)

// String is the phase in lower case, for logs.
func (p Phase) String() string {
	return [...]string{"syncing", "terminating", "terminated"}[p]
}
