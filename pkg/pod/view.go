package pod

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// View is one pod as its worker last left it. Nothing in it may be changed.
type View struct {
	// Pod is the pod as desired, with the status that this agent has found, which the API server may not have yet.
	Pod        *v1.Pod
	MirrorUID  types.UID // of a static pod, once its mirror is there
	Phase      Phase
	Gone       bool // no source wants it any more
	Observed   Observed
	Operations []string  // in flight, oldest first
	Waits      []Wait    // what is not started yet, and why
	Next       time.Time // when the worker looks again if nothing happens before; zero: only then
	PodIPs     []netip.Addr
}

// ContainerRef is where a request for a container goes.
type ContainerRef struct {
	Pod *v1.Pod // with its current status; not to be changed
	// ID is the latest attempt that was started, running or not; "" when none was asked for.
	ID      string
	Running bool
	// Previous is the attempt before, for `kubectl logs --previous`; "" where there is none.
	Previous string
	// NetworkID is the running container that owns the pod's network: the sandbox, or where there is none the running container.
	NetworkID string
	PodIPs    []netip.Addr
}
