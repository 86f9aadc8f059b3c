package engine

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api"
	"github.com/docker/docker/api/types/versions"
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

// ApplyError says why a Step or the lookup of an image failed.
type ApplyError struct {
	Reason  string // one of the Reasons
	Message string // for users: the engine's own words
	Err     error  // with the failed operation
}

// Error returns the failed operation and the cause.
func (e *ApplyError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ApplyError) Unwrap() error { return e.Err }

// Waiting is the container's state.waiting. Upstream shows ContainerCreating while there is no sandbox.
func (e *ApplyError) Waiting() (reason, message string) {
	if e.Reason == ReasonSandbox {
		return "ContainerCreating", ""
	}
	return e.Reason, e.Message
}

// NoAnswer is the cause when a request ends because the engine did not answer in time.
type NoAnswer struct{ Limit time.Duration }

// Error returns the exceeded limit.
func (n NoAnswer) Error() string { return fmt.Sprintf("the engine did not answer within %v", n.Limit) }

// Timeout makes NoAnswer a timeout as package net defines it.
func (NoAnswer) Timeout() bool { return true }

// beingRemoved recognizes the engine's answer to a second removal of a container.
func beingRemoved(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress")
}

// StillRuns recognizes the answers of all engine versions to the removal of a running container.
func StillRuns(err error) bool {
	return cerrdefs.IsConflict(err) && (strings.Contains(err.Error(), "running") || strings.Contains(err.Error(), "paused"))
}

// NameTaken recognizes the engine's answer to a create request whose name is in use. Engines before 17.06 answer with 409 as well.
func NameTaken(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in use")
}

var tooOld = regexp.MustCompile(`client version \S+ is too old\. Minimum supported API version is ([0-9]+\.[0-9]+)`)

// versionRefused recognizes the answer of an engine that does not speak the version of a request. It has not looked at the rest.
func versionRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "client version") && strings.Contains(err.Error(), "API version")
}

// refused explains that an engine refuses every version that this client speaks. With any other engine the next request succeeds, after another
// negotiation.
func refused(err error) error {
	match := tooOld.FindStringSubmatch(err.Error())
	if match == nil || !versions.GreaterThan(match[1], api.DefaultVersion) {
		return err
	}
	return tooNew{match[1], err}
}
