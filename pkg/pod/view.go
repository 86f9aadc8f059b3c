package pod

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// View is one pod as its worker last left it. It is read-only.
type View struct {
	// Pod is the desired pod with the status that this agent found. The API server may not have that status yet.
	Pod        *v1.Pod
	MirrorUID  types.UID // of a static pod, once its mirror pod exists
	Phase      Phase
	Gone       bool // no source wants it any more
	Left       bool // it has ended, its volumes are unmounted and its directory is removed
	Observed   Observed
	Operations []string  // in flight, oldest first
	Waits      []Wait    // what has not started yet, and why
	Next       time.Time // when the worker looks again if nothing happens earlier; zero: only after an event
	PodIPs     []netip.Addr
}

// ContainerRef is the container that a request refers to.
type ContainerRef struct {
	Pod *v1.Pod // with its current status; read-only
	// ID is the latest started attempt, running or not; "" if none was requested.
	ID      string
	Running bool
	// Previous is the attempt before, for `kubectl logs --previous`; "" if there is none.
	Previous string
	// NetworkID is the running container that owns the pod's network: the sandbox, or the running container if there is no sandbox.
	NetworkID string
	PodIPs    []netip.Addr
}
