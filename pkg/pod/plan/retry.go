package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Retry is the state of a failed operation: what users see, and when the next try may begin. The zero value means that it never failed.
type Retry struct {
	Reason, Message string // of the container's waiting state; "": nothing to show
	Until           time.Time

	delay wait.Backoff // after the next failure
}

// Back-off of failed steps and chores.
const (
	retryMin = time.Second
	retryMax = 10 * time.Second
)

// Waits reports whether it is too early for the next try.
func (r Retry) Waits(now time.Time) bool { return r.Until.After(now) }

// Again is r after one more failure. The next try is after a back-off that doubles from 1 s to 10 s, or after hint if that is not 0.
func (r Retry) Again(now time.Time, hint time.Duration) Retry {
	if r.delay.Steps == 0 && r.delay.Duration == 0 {
		r.delay = wait.Backoff{Duration: retryMin, Factor: 2, Cap: retryMax, Steps: 32}
	}
	delay := r.delay.Step()
	if hint > 0 {
		delay = hint
	}
	r.Until = now.Add(delay)
	return r
}

// Now is r with the next try due now.
func (r Retry) Now() Retry {
	r.Until = time.Time{}
	return r
}

// Key identifies what is retried.
type Key struct {
	what purpose
	of   string // a container's name or an engine's id
}

type purpose int8

const (
	forSandbox purpose = iota
	forStart
	forMember
	forUpdate
)

// SandboxKey is the key of the work before any container: choosing the runtime and creating the sandbox.
var SandboxKey = Key{what: forSandbox}

// StartKey is the key of starts of the named container.
func StartKey(name string) Key { return Key{forStart, name} }

// MemberKey is the key of work on an existing sandbox or container: attaching its network, stopping or removing it.
func MemberKey(id string) Key { return Key{forMember, id} }

// UpdateKey is the key of limit changes of a container, or of the pod if id is "". Their failures must not delay a stop.
func UpdateKey(id string) Key { return Key{forUpdate, id} }

// IsUpdate reports whether k is an UpdateKey.
func (k Key) IsUpdate() bool { return k.what == forUpdate }

// gone reports whether the object of k no longer exists.
func (k Key) gone(desired *v1.Pod, live map[pod.EngineID]bool) bool {
	switch k.what {
	case forSandbox:
		return false
	case forStart:
		_, _, ok := podspec.FindContainer(desired, k.of)
		return !ok
	}
	return !live[pod.EngineID(k.of)]
}
