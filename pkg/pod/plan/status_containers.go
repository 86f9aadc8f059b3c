package plan

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// list returns the statuses of one kind of container: init containers in the order of the spec, the others by name.
func (s *statuser) list(want podspec.Kind) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for kind, c := range podspec.Containers(s.pod) {
		if kind == want {
			out = append(out, s.container(kind, c))
		}
	}
	if want != podspec.Init {
		slices.SortFunc(out, func(a, b v1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

func (s *statuser) container(kind podspec.Kind, c *v1.Container) v1.ContainerStatus {
	old := podspec.FindStatus(&s.memory.Last, kind, c.Name)
	st := v1.ContainerStatus{Name: c.Name, Image: c.Image, Started: new(false), VolumeMounts: mountStatuses(c, false)}
	st.State.Waiting = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if len(s.pod.Spec.InitContainers) > 0 {
		st.State.Waiting.Reason = "PodInitializing"
	}
	if old != nil {
		st.RestartCount, st.LastTerminationState = old.RestartCount, old.LastTerminationState
	}
	if kind == podspec.Ephemeral {
		st.Started = nil // no probes, no restarts
	}
	list := attempts(s.observed, &s.memory.Last, kind, c)
	// An attempt appears only when its start is complete, which includes the postStart hook.
	if len(list) > 0 && list[0].State == pod.Running && s.incomplete(c, list[0].ID) {
		list = list[1:]
	}
	if len(list) > 0 {
		s.fill(&st, kind, c, list, old)
	} else if kind == podspec.Init && !podspec.IsSidecar(c) && s.appRan() {
		st.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
			Reason: "Completed", Message: "The engine has forgotten this init container; the pod's containers were started, so it has succeeded"}}
		st.Ready = true
	}
	s.waiting(&st, kind, c, list)
	return st
}

// incomplete reports whether a running container's start is incomplete. This does not apply to a container that is being stopped.
func (s *statuser) incomplete(c *v1.Container, id string) bool {
	run := s.memory.Run(id)
	return run.Stop.IsZero() && !s.memory.PostStarted(c, id) && run.Hooks.PostStart != Failed && s.memory.Phase == pod.Syncing
}

// fill sets the state from the latest attempt and lastState from the one before.
func (s *statuser) fill(st *v1.ContainerStatus, kind podspec.Kind, c *v1.Container, list []past, old *v1.ContainerStatus) {
	latest := list[0]
	st.RestartCount = max(st.RestartCount, int32(latest.Attempt))
	st.Image, st.ImageID, st.ContainerID = latest.Image, latest.ImageID, pod.ContainerIDPrefix+latest.ID
	if st.Image == "" {
		st.Image = c.Image
	}
	st.Resources = s.resources(kind, c, latest)
	st.AllocatedResources = c.Resources.Requests.DeepCopy()
	st.VolumeMounts = mountStatuses(c, latest.RecursiveReadOnly)
	if latest.User != nil {
		st.User = &v1.ContainerUser{Linux: latest.User.DeepCopy()}
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil { // an API server without the feature dropped this field and would drop the status field too
		st.StopSignal = signalOf(latest.StopSignal)
	}
	if latest.remembered != nil && old != nil { // the engine no longer has it
		st.User, st.StopSignal, st.VolumeMounts = old.User, old.StopSignal, old.VolumeMounts
	}
	switch {
	case len(list) > 1:
		st.LastTerminationState = v1.ContainerState{Terminated: endOf(list[1], old)}
	case old != nil && old.ContainerID != st.ContainerID && old.State.Terminated != nil:
		st.LastTerminationState = v1.ContainerState{Terminated: old.State.Terminated}
	}
	if latest.State != pod.Running {
		st.State = v1.ContainerState{Terminated: endOf(latest, old)}
		st.Ready = kind == podspec.Init && !podspec.IsSidecar(c) && st.State.Terminated.ExitCode == 0
		return
	}
	st.State = v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: *apiTimePointer(latest.StartedAt)}}
	switch {
	case kind == podspec.Ephemeral:
		return
	case kind == podspec.Init && !podspec.IsSidecar(c):
		st.Started = new(true)
		return
	}
	startedUp := c.StartupProbe == nil || s.memory.Run(latest.ID).Probes.Startup == Passed
	st.Started = &startedUp
	st.Ready = startedUp && (c.ReadinessProbe == nil || s.memory.Run(latest.ID).Probes.Readiness == Passed)
}

// endOf is the end of an attempt. What the engine no longer has (for example the message of a pod whose directory is gone) comes from the
// old status.
func endOf(end past, old *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if end.remembered != nil {
		return end.remembered
	}
	out := &v1.ContainerStateTerminated{
		ExitCode: int32(end.ExitCode), Reason: EndReason(end.Container), Message: end.Message, ContainerID: pod.ContainerIDPrefix + end.ID,
		StartedAt: apiTime(end.StartedAt), FinishedAt: apiTime(end.FinishedAt),
	}
	if out.Message == "" && end.Error != "" {
		out.Message = end.Error
	}
	if old != nil {
		for _, known := range []*v1.ContainerStateTerminated{old.State.Terminated, old.LastTerminationState.Terminated} {
			if known == nil || known.ContainerID != out.ContainerID {
				continue
			}
			if out.Message == "" {
				out.Message = known.Message
			}
			if known.Reason == oomKilled && known.ExitCode == out.ExitCode { // an earlier agent saw what the engine does not report
				out.Reason = oomKilled
			}
		}
	}
	return out
}

func apiTime(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t).Rfc3339Copy()
}

const oomKilled = "OOMKilled"

// EndReason is upstream's reason of a terminated container.
func EndReason(c pod.Container) string {
	switch {
	case c.OOMKilled:
		return oomKilled
	case c.Error != "":
		return "ContainerCannotRun"
	case c.ExitCode == 0:
		return "Completed"
	}
	return "Error"
}

// waiting shows why a container that should start has not started. Without a reason to show, the last state stays.
func (s *statuser) waiting(st *v1.ContainerStatus, kind podspec.Kind, c *v1.Container, list []past) {
	if s.memory.Phase != pod.Syncing || st.State.Running != nil {
		return
	}
	var show *v1.ContainerStateWaiting
	ended := len(list) > 0
	if ended && !s.comesBack(kind, c, list[0]) {
		return
	}
	f, failed := s.memory.Retries[StartKey(c.Name)]
	failed = failed && f.Reason != ""
	until, delay := backOff(s.seen, c, list)
	switch {
	case failed && (f.Waits(s.now) || !ended || !until.After(s.now)):
		show = &v1.ContainerStateWaiting{Reason: f.Reason, Message: f.Message}
	case ended && until.After(s.now):
		show = &v1.ContainerStateWaiting{Reason: ReasonCrashLoop, Message: crashMessage(s.pod, c.Name, delay)}
	case ended && list[0].remembered != nil && list[0].remembered.Reason == reasonUnknown:
		show = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	if show == nil {
		return
	}
	if st.State.Terminated != nil {
		st.LastTerminationState = v1.ContainerState{Terminated: st.State.Terminated}
	}
	st.State = v1.ContainerState{Waiting: show}
	st.Ready = false
}

// restarting shows the already removed containers of a pod that restarts all containers in place.
func (s *statuser) restarting(out *v1.PodStatus) {
	if !s.restartingAll() {
		return
	}
	const message = "The container is removed because RestartAllContainers in place"
	for _, list := range [][]v1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses} {
		for i := range list {
			st := &list[i]
			if st.ContainerID == "" || slices.ContainsFunc(s.observed.Containers, func(c pod.Container) bool { return pod.ContainerIDPrefix+c.ID == st.ContainerID }) {
				continue
			}
			st.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonRestartingAll, Message: message}}
			st.LastTerminationState = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reasonRestartingAll, Message: message, ExitCode: 137}}
			st.RestartCount++
			st.ContainerID, st.ImageID = "", ""
			st.Ready, st.Started = false, new(false)
		}
	}
}

// signalOf is a container's stop signal as the API spells it. The engine keeps the image's spelling: SIGQUIT, QUIT or 3.
func signalOf(text string) *v1.Signal {
	if text == "" {
		return new(v1.SIGTERM)
	}
	if text = strings.ToUpper(text); text[0] >= 'A' && !strings.HasPrefix(text, "SIG") {
		text = "SIG" + text
	}
	return new(v1.Signal(text))
}

// mountStatuses are the mounts of the spec. recursive means that recursive read-only mounts were possible.
func mountStatuses(c *v1.Container, recursive bool) []v1.VolumeMountStatus {
	var out []v1.VolumeMountStatus
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		st := v1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			st.RecursiveReadOnly = new(v1.RecursiveReadOnlyDisabled)
			if yes, err := podspec.RecursivelyReadOnly(m, recursive); yes && err == nil {
				st.RecursiveReadOnly = new(v1.RecursiveReadOnlyEnabled)
			}
		}
		out = append(out, st)
	}
	return out
}
