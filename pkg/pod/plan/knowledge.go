package plan

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Knowledge is what a worker knows of its pod beside the spec and what the engine has. Plan and Status read it and change nothing. All
// maps may be nil.
type Knowledge struct {
	Platform pod.Platform
	Phase    pod.Phase
	// Handler is that of the pod's RuntimeClass; nil: not known yet. On Windows no plan is made without it, on Linux none needs it.
	Handler *string
	// Remove says that nothing of the pod is wanted any more, also no dead containers for their logs: it is deleted, or an orphan.
	Remove bool
	// Deadline is when the last container must be gone in phase Terminating. Each container's grace is cut to it.
	Deadline time.Time
	// Ended is why this agent ends the pod against its will; nil where it does not.
	Ended *pod.Rejection
	// Disrupted says that it ends the pod for the sake of the node or of other pods.
	Disrupted bool
	// Last is the pod's last known status: the worker's own, or the API server's when the worker was made.
	Last v1.PodStatus
	// Began is the start time of Last as this agent counts time, which no setting of the clock changes; zero: only Last has it.
	Began time.Time
	// HostIPs are the node's addresses, primary first.
	HostIPs []netip.Addr

	Probes   map[string]Verdict       // by container id
	Hooks    map[string]Hooks         // by container id
	Stops    map[string]time.Time     // by container id: a stop that was begun, and when it becomes a kill
	Replace  map[string]bool          // by container id: comes back after its end whatever the restart policy says
	Delays   map[string]time.Duration // by container name: the back-off after which its latest attempt was started
	Failures map[string]Failure       // by container name for starts ("": the sandbox), by engine id for stops and removals
	// Resize is why the pod's newest resources are not granted; nil where they are.
	Resize *pod.Rejection
	// Granted is the generation of the spec whose resources were granted last; 0: none since this agent began.
	Granted int64
	Updates map[string]podspec.Resources // by container id: what the engine was last told to hold it to
	// Dead says which containers that have ended are kept, and Surplus, by id, which of them are too many for the node.
	Dead    *DeadLimits
	Surplus map[string]bool
	// Busy are the steps in flight.
	Busy []pod.Step
}

// Result is the state of a probe: what held for as many runs in a row as its threshold says.
type Result int8

const (
	Unknown Result = iota // not yet known
	Passed
	Failed
)

func (r Result) String() string { return [...]string{"unknown", "passed", "failed"}[r] }

// Verdict is what the probes of one container say.
type Verdict struct{ Startup, Liveness, Readiness Result }

// Hooks is what is known of one container's lifecycle hooks.
type Hooks struct {
	PostStart Result // Unknown: has not finished, or not under this agent
	PreStop   bool   // it ran to its end or to the end of its time
}

// Failure is a step that failed and when it may be tried again.
type Failure struct {
	Reason, Message string // of the container's waiting state; "": nothing to show
	Until           time.Time
	Count           int // in a row
}

// busy finds a step in flight for which match holds.
func (k *Knowledge) busy(match func(pod.Step) bool) *pod.Step {
	for i := range k.Busy {
		if match(k.Busy[i]) {
			return &k.Busy[i]
		}
	}
	return nil
}

// HasStarted says whether a running container counts as started: its postStart hook is through and so is its startup probe.
func (k *Knowledge) HasStarted(container *v1.Container, id string) bool {
	return k.PostStarted(container, id) && (container.StartupProbe == nil || k.Probes[id].Startup == Passed)
}

// PostStarted says whether the container's postStart hook has run, where it has one.
func (k *Knowledge) PostStarted(container *v1.Container, id string) bool {
	return container.Lifecycle == nil || container.Lifecycle.PostStart == nil || k.Hooks[id].PostStart == Passed
}

// Recall takes from an API status what a new worker must know of containers that already ran: hooks that are through, and what their
// probes said until they speak again.
func (k *Knowledge) Recall(p *v1.Pod) {
	k.Probes, k.Hooks = map[string]Verdict{}, map[string]Hooks{}
	for kind, c := range podspec.Containers(p) {
		old := podspec.FindStatus(&k.Last, kind, c.Name)
		if old == nil || old.State.Running == nil || len(old.ContainerID) <= len(pod.ContainerIDPrefix) {
			continue
		}
		id := old.ContainerID[len(pod.ContainerIDPrefix):]
		k.Hooks[id] = Hooks{PostStart: Passed}
		var v Verdict
		if old.Started != nil && *old.Started {
			v.Startup = Passed
		}
		if old.Ready {
			v.Readiness = Passed
		}
		k.Probes[id] = v
	}
}
