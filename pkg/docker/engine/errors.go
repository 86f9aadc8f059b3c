package engine

import (
	"fmt"
	"strings"
	"time"

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

// NoAnswer is the cause of a request's end when the engine did not answer in time.
type NoAnswer struct{ Limit time.Duration }

// Error says how long the engine had.
func (n NoAnswer) Error() string { return fmt.Sprintf("the engine did not answer within %v", n.Limit) }

// Timeout makes NoAnswer a timeout as package net defines it.
func (NoAnswer) Timeout() bool { return true }

// beingRemoved knows the engine's answer to a second removal of a container.
func beingRemoved(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress")
}

// StillRuns knows the engine's answers to the removal of a container that runs, in the words of all its versions.
func StillRuns(err error) bool {
	return cerrdefs.IsConflict(err) && (strings.Contains(err.Error(), "running") || strings.Contains(err.Error(), "paused"))
}

// NameTaken knows the engine's answer to a create whose name is in use. Engines before 17.06 answer with 409 as well.
func NameTaken(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in use")
}
