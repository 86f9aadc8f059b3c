package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Retry is something that failed: what users see of it meanwhile, and from when on it may be tried again. The zero value is what never
// failed.
type Retry struct {
	Reason, Message string // of the container's waiting state; "": nothing to show
	Until           time.Time

	delay wait.Backoff // after the next failure
}

// Back-off of steps and chores that fail.
const (
	retryMin = time.Second
	retryMax = 10 * time.Second
)

// Waits says whether it is too early for the next try.
func (r Retry) Waits(now time.Time) bool { return r.Until.After(now) }

// Again is r after one more failure: the next try is after a back-off that doubles from 1 s to 10 s, or after hint where that is not 0.
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

// Now is r with the next try due.
func (r Retry) Now() Retry {
	r.Until = time.Time{}
	return r
}

// Key says what is tried again.
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

// SandboxKey is of what is done before any container: choosing the runtime and making the sandbox.
var SandboxKey = Key{what: forSandbox}

// StartKey is of starts of the container of that name.
func StartKey(name string) Key { return Key{forStart, name} }

// MemberKey is of what is done to a sandbox or container that exists: attaching its network, stopping, removing it.
func MemberKey(id string) Key { return Key{forMember, id} }

// UpdateKey is of changes of what a container, or with id "" the pod, is held to. They must not hold up a stop.
func UpdateKey(id string) Key { return Key{forUpdate, id} }

// IsUpdate says whether k is an UpdateKey.
func (k Key) IsUpdate() bool { return k.what == forUpdate }

// gone says whether what k is of does not exist any more.
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
