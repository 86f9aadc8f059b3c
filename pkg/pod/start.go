package pod

import (
	"net/netip"
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// Attempt is the start for which Container is asked.
type Attempt struct {
	Kind      podspec.Kind
	Number    int          // the container's restart count
	SandboxID string       // "" where there is no sandbox
	Addresses []netip.Addr // the sandbox's; empty with hostNetwork and where there is no sandbox
	Runtime   string       // the sandbox's
	TargetID  string       // of a running container, for an ephemeral one that names it
}

// StartError says why a pod or container cannot start now. Nothing of it is final: the start is tried again.
type StartError struct {
	// Reason is upstream's: of the container's waiting state (ErrImagePull, CreateContainerConfigError, ...), or for what is wrong
	// before any container, of the event (FailedMount, NetworkNotReady, FailedCreatePodSandBox).
	Reason, Message string
	RetryAfter      time.Duration // 0: the worker's own back-off
	Err             error         // the cause; nil where the pod's own fields are
}

// Error is the reason and the message.
func (e *StartError) Error() string { return e.Reason + ": " + e.Message }

// Unwrap is the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Waiting is the container's state.waiting: before there is a sandbox and volumes, upstream shows ContainerCreating and no message.
func (e *StartError) Waiting() (reason, message string) {
	switch e.Reason {
	case ReasonMount, ReasonNetwork, ReasonSandbox:
		return "ContainerCreating", ""
	}
	return e.Reason, e.Message
}

const (
	ReasonMount   = "FailedMount"
	ReasonNetwork = "NetworkNotReady"
	ReasonSandbox = "FailedCreatePodSandBox"
	ReasonConfig  = "CreateContainerConfigError"
)
