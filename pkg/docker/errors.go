package docker

import (
	"errors"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
)

// Reasons of an ApplyError, in upstream's words.
const (
	ReasonSandbox  = "FailedCreatePodSandBox"
	ReasonConfig   = "CreateContainerConfigError" // the spec asks for what the engine cannot do
	ReasonCreate   = "CreateContainerError"
	ReasonRun      = "RunContainerError"
	ReasonKill     = "KillContainerError"
	ReasonRemove   = "RemoveContainerError"
	ReasonBadImage = "InvalidImageName"
)

// ApplyError says why a Step could not be done, or an image not be looked up.
type ApplyError struct {
	Reason  string // one of the Reasons
	Message string // for users: the engine's own words
	Err     error  // with what was being done
}

// Error is what was being done and why it failed.
func (e *ApplyError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *ApplyError) Unwrap() error { return e.Err }

// Waiting is the container's state.waiting. Upstream shows ContainerCreating while there is no sandbox.
func (e *ApplyError) Waiting() (reason, message string) {
	if e.Reason == ReasonSandbox {
		return "ContainerCreating", ""
	}
	return e.Reason, e.Message
}

// failed makes an ApplyError, unless err is nil or one already.
func failed(reason string, err error) error {
	var apply *ApplyError
	if err == nil || errors.As(err, &apply) {
		return err
	}
	root := err
	for next := errors.Unwrap(root); next != nil && strings.HasPrefix(root.Error(), "cannot "); next = errors.Unwrap(root) {
		root = next
	}
	return &ApplyError{Reason: reason, Message: root.Error(), Err: err}
}

// gone says that the object of a request does not exist, which is what stop and remove want.
func gone(err error) bool { return cerrdefs.IsNotFound(err) }

// beingRemoved knows the engine's answer to a second removal of a container.
func beingRemoved(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress")
}

// stillRuns knows the engine's answers to the removal of a container that runs, in the words of all its versions.
func stillRuns(err error) bool {
	return cerrdefs.IsConflict(err) && (strings.Contains(err.Error(), "running") || strings.Contains(err.Error(), "paused"))
}

// nameTaken knows the engine's answer to a create whose name is in use. Engines before 17.06 answer with 409 as well.
func nameTaken(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in use")
}

// deniedOOM knows the ways in which runc says that it may not lower oom_score_adj. The first is all that old runcs tell, and they
// tell it of other faults too, so that only a start that succeeds with a higher score proves it.
func deniedOOM(err error) bool {
	text := err.Error()
	return strings.Contains(text, "can't get final child's PID from pipe: EOF") ||
		strings.Contains(text, "oom_score_adj") && strings.Contains(text, "permission denied")
}
