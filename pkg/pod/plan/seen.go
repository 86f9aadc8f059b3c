package plan

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Seen is everything that a decision about a pod depends on besides its spec and the time, grouped by source. Plan and Status do not modify
// it.
type Seen struct {
	Node    Node               // the kubelet's configuration
	Engine  pod.Observed       // the Runtime: sandboxes and containers
	Network pod.Attachments    // the Attacher; nil if there is none
	Cgroup  *podspec.Resources // Cgroups: the limits of the pod's cgroup; nil if there is none
	Memory  Memory             // the pod's worker
}

// Node is what applies to all pods of this node.
type Node struct {
	Platform pod.Platform
	HostIPs  []netip.Addr // the node's addresses, primary first
	Dead     *DeadLimits  // which exited containers are kept; nil: upstream's defaults
	// CrashBackOff is the longest delay before a crashing container starts again; 0: CrashBackOffMax.
	CrashBackOff time.Duration
}

// Memory is what a worker remembers about its pod and neither the spec nor the engine knows. All maps may be nil.
type Memory struct {
	Phase pod.Phase
	// Handler is the handler of the pod's RuntimeClass; nil: not known yet. On Windows, planning needs it; on Linux it does not.
	Handler *string
	End     End
	Resize  Resize
	// Last is the pod's last known status: the worker's own, or initially the API server's.
	Last v1.PodStatus
	// Began is the start time in Last by this agent's monotonic clock, which changes of the system time do not affect; zero: only Last has
	// it.
	Began time.Time
	Runs  map[pod.EngineID]*Run
	// Delays are the back-offs before the latest attempt of each container.
	Delays  map[ContainerName]time.Duration
	Retries map[Key]Retry
	Busy    []Step // in flight, oldest first
}

// ContainerName is the name of a container in its pod's spec.
type ContainerName string

// End is why and by when a pod ends.
type End struct {
	// Why this agent ends the pod; nil if it does not.
	Why *pod.Rejection
	// Disrupted means that the agent ends the pod to protect the node or other pods.
	Disrupted bool
	// Deadline is when the last container must have ended, once the pod is past Syncing. It limits each container's grace period.
	Deadline time.Time
	// Remove means that the pod was deleted or is an orphan: everything goes, including exited containers kept for their logs.
	Remove bool
}

// Resize is the progress of a change to the pod's resources.
type Resize struct {
	Pending *pod.Rejection    // why the newest resources are not granted; nil if they are
	Granted int64             // the spec generation whose resources were granted last; 0: none since this agent started
	Told    podspec.Resources // the limits last requested for the pod's cgroup; zero: none since the last resize
}

// Run is what is remembered of one sandbox or container in the engine. The zero value is for one that has just started.
type Run struct {
	Probes Verdict
	Hooks  Hooks
	// Stop is when the stop in progress becomes a kill; zero: no stop in progress.
	Stop time.Time
	// Replace means that it is started again after its end regardless of the restart policy.
	Replace bool
	// Surplus means that it has exited and exceeds the node's limit for exited containers.
	Surplus bool
	// Told are the limits last requested from the engine; zero: none since the last resize.
	Told podspec.Resources
}

// Result is the state of a probe or hook: its result for as many consecutive runs as its threshold.
type Result int8

// Results.
const (
	Unknown Result = iota // not yet known
	Passed
	Failed
)

// String is the result in lower case, for logs.
func (r Result) String() string { return [...]string{"unknown", "passed", "failed"}[r] }

// Verdict is the results of one container's probes.
type Verdict struct{ Startup, Liveness, Readiness Result }

// Hooks is what is known of one container's lifecycle hooks.
type Hooks struct {
	PostStart Result // Unknown: has not finished, or not under this agent
	PreStop   bool   // it ended or ran out of time
}

// Observed is what the engine has, completed with what the network knows.
func (s *Seen) Observed() pod.Observed { return s.Engine.With(s.Network) }

// NeedsSandbox reports whether the containers of desired share a sandbox's network. If not, the pod has one container at a time.
func (s *Seen) NeedsSandbox(desired *v1.Pod) bool {
	if s.Node.Platform.OS == "windows" {
		handler := ""
		if s.Memory.Handler != nil {
			handler = *s.Memory.Handler
		}
		if isolation, _ := podspec.Isolation(desired, handler, s.Node.Platform.HyperVContainer); isolation == "hyperv" {
			return false
		}
	}
	return s.Node.Platform.SharedNetwork
}

// Run returns what is remembered of the sandbox or container, or the zero value.
func (m *Memory) Run(id string) Run {
	if r := m.Runs[pod.EngineID(id)]; r != nil {
		return *r
	}
	return Run{}
}

// Note returns what is remembered of the sandbox or container, for the caller to modify.
func (m *Memory) Note(id string) *Run {
	r := m.Runs[pod.EngineID(id)]
	if r == nil {
		if m.Runs == nil {
			m.Runs = map[pod.EngineID]*Run{}
		}
		r = &Run{}
		m.Runs[pod.EngineID(id)] = r
	}
	return r
}

// Started reports whether a running container counts as started: its postStart hook and its startup probe have succeeded.
func (m *Memory) Started(container *v1.Container, id string) bool {
	return m.PostStarted(container, id) && (container.StartupProbe == nil || m.Run(id).Probes.Startup == Passed)
}

// PostStarted reports whether the container's postStart hook, if any, has succeeded.
func (m *Memory) PostStarted(container *v1.Container, id string) bool {
	return container.Lifecycle == nil || container.Lifecycle.PostStart == nil || m.Run(id).Hooks.PostStart == Passed
}

// Recall restores from Last what a new worker must know about running containers: their hooks have run, and their last probe results apply
// until the next ones.
func (m *Memory) Recall(desired *v1.Pod) {
	for kind, c := range podspec.Containers(desired) {
		old := podspec.FindStatus(&m.Last, kind, c.Name)
		if old == nil || old.State.Running == nil || len(old.ContainerID) <= len(pod.ContainerIDPrefix) {
			continue
		}
		run := m.Note(old.ContainerID[len(pod.ContainerIDPrefix):])
		run.Hooks.PostStart = Passed
		if old.Started != nil && *old.Started {
			run.Probes.Startup = Passed
		}
		if old.Ready {
			run.Probes.Readiness = Passed
		}
	}
}

// Forget drops what is remembered of objects that are no longer in the spec or in the engine.
func (m *Memory) Forget(desired *v1.Pod, engine *pod.Observed) {
	if len(m.Runs)+len(m.Retries) == 0 {
		return
	}
	live := map[pod.EngineID]bool{"": true} // the pod as a whole
	for i := range engine.Containers {
		live[pod.EngineID(engine.Containers[i].ID)] = true
	}
	for i := range engine.Sandboxes {
		live[pod.EngineID(engine.Sandboxes[i].ID)] = true
	}
	for id := range m.Runs {
		if !live[id] {
			delete(m.Runs, id)
		}
	}
	for key := range m.Retries {
		if key.gone(desired, live) {
			delete(m.Retries, key)
		}
	}
}

// busy reports whether match holds for a step in flight.
func (m *Memory) busy(match func(Step) bool) bool {
	for _, s := range m.Busy {
		if match(s) {
			return true
		}
	}
	return false
}

// doing reports whether the Runtime is carrying out one of actions.
func (m *Memory) doing(actions ...pod.Action) bool {
	return m.busy(func(s Step) bool {
		for _, a := range actions {
			if does(s, a) {
				return true
			}
		}
		return false
	})
}

// touching reports whether a step on this sandbox or container is in flight.
func (m *Memory) touching(id string) bool {
	return m.busy(func(s Step) bool { return s.Of().ID == id })
}
