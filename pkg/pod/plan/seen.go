package plan

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Seen is all that a decision about a pod depends on beside its spec and the time, by who fills it in. Plan and Status change nothing of it.
type Seen struct {
	Node    Node               // the kubelet's configuration
	Engine  pod.Observed       // the Runtime: sandboxes and containers
	Network pod.Attachments    // the Attacher; nil where there is none
	Cgroup  *podspec.Resources // Cgroups: what the pod as a whole is held to; nil where it has no cgroup
	Memory  Memory             // the pod's worker
}

// Node is what holds for all pods of this node.
type Node struct {
	Platform pod.Platform
	HostIPs  []netip.Addr // the node's addresses, primary first
	Dead     *DeadLimits  // which containers that have ended are kept; nil: upstream's defaults
}

// Memory is what a worker remembers of its pod: what neither the spec nor the engine says. All maps may be nil.
type Memory struct {
	Phase pod.Phase
	// Handler is that of the pod's RuntimeClass; nil: not known yet. On Windows no plan is made without it, on Linux none needs it.
	Handler *string
	End     End
	Resize  Resize
	// Last is the pod's last known status: the worker's own, or the API server's when the worker was made.
	Last v1.PodStatus
	// Began is the start time of Last as this agent counts time, which no setting of the clock changes; zero: only Last has it.
	Began time.Time
	Runs  map[pod.EngineID]*Run
	// Delays are the back-offs after which the latest attempt of each container was started.
	Delays  map[ContainerName]time.Duration
	Retries map[Key]Retry
	Busy    []Step // in flight, those first that began first
}

// ContainerName is the name of a container in its pod's spec.
type ContainerName string

// End is why and by when a pod ends.
type End struct {
	// Why this agent ends the pod against its will; nil where it does not.
	Why *pod.Rejection
	// Disrupted says that it ends the pod for the good of the node or of other pods.
	Disrupted bool
	// Deadline is when the last container must be gone once the pod is past Syncing. Each container's grace is cut to it.
	Deadline time.Time
	// Remove says that nothing of the pod is wanted any more, also no dead containers for their logs: it is deleted, or an orphan.
	Remove bool
}

// Resize is how far a change of the pod's resources has come.
type Resize struct {
	Pending *pod.Rejection    // why the newest resources are not granted; nil where they are
	Granted int64             // the generation of the spec whose resources were granted last; 0: none since this agent began
	Told    podspec.Resources // what the pod's cgroup was last told to hold it to; zero: nothing since the last resize
}

// Run is what is remembered of one sandbox's or container's life in the engine. The zero value is of one that just began.
type Run struct {
	Probes Verdict
	Hooks  Hooks
	// Stop is when the stop that was begun becomes a kill; zero: none was begun.
	Stop time.Time
	// Replace says that it is started again after its end whatever the restart policy says.
	Replace bool
	// Surplus says that it has ended and that the node keeps too many of those.
	Surplus bool
	// Told is what the engine was last told to hold it to; zero: nothing since the last resize.
	Told podspec.Resources
}

// Result is the state of a probe or hook: what held for as many runs in a row as its threshold says.
type Result int8

// Results.
const (
	Unknown Result = iota // not yet known
	Passed
	Failed
)

// String is the result for people.
func (r Result) String() string { return [...]string{"unknown", "passed", "failed"}[r] }

// Verdict is what the probes of one container say.
type Verdict struct{ Startup, Liveness, Readiness Result }

// Hooks is what is known of one container's lifecycle hooks.
type Hooks struct {
	PostStart Result // Unknown: has not finished, or not under this agent
	PreStop   bool   // it ran to its end or to the end of its time
}

// Observed is what the engine has, completed by what the network knows.
func (s *Seen) Observed() pod.Observed { return s.Engine.With(s.Network) }

// NeedsSandbox says whether the containers of desired share the network of a sandbox. Where they do not, the pod has one container at a time.
func (s *Seen) NeedsSandbox(desired *v1.Pod) bool {
	if s.Node.Platform.OS == "windows" {
		handler := ""
		if s.Memory.Handler != nil {
			handler = *s.Memory.Handler
		}
		if isolation, _ := podspec.Isolation(desired, handler); isolation == "hyperv" {
			return false
		}
	}
	return s.Node.Platform.SharedNetwork
}

// Run is what is remembered of the sandbox or container of that id; the zero value where that is nothing.
func (m *Memory) Run(id string) Run {
	if r := m.Runs[pod.EngineID(id)]; r != nil {
		return *r
	}
	return Run{}
}

// Note returns what is remembered of the sandbox or container of that id, to be changed.
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

// Started says whether a running container counts as started: its postStart hook is through and so is its startup probe.
func (m *Memory) Started(container *v1.Container, id string) bool {
	return m.PostStarted(container, id) && (container.StartupProbe == nil || m.Run(id).Probes.Startup == Passed)
}

// PostStarted says whether the container's postStart hook has run, where it has one.
func (m *Memory) PostStarted(container *v1.Container, id string) bool {
	return container.Lifecycle == nil || container.Lifecycle.PostStart == nil || m.Run(id).Hooks.PostStart == Passed
}

// Recall takes from Last what a new worker must know of containers that already ran: hooks that are through, and what their probes said
// until they speak again.
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

// Forget drops what is remembered of what does not exist any more, in the spec or in the engine.
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

// busy finds a step in flight for which match holds.
func (m *Memory) busy(match func(Step) bool) bool {
	for _, s := range m.Busy {
		if match(s) {
			return true
		}
	}
	return false
}

// doing says whether the Runtime does one of actions.
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

// touching says whether a step on the sandbox or container of that id is in flight.
func (m *Memory) touching(id string) bool {
	return m.busy(func(s Step) bool { return s.Of().ID == id })
}
