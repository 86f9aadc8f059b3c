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

// list makes the statuses of one kind of container: init containers in the order of the spec, the others by name.
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
		st.Started = nil // neither probes nor restarts
	}
	list := attempts(s.observed, &s.memory.Last, kind, c)
	// An attempt is shown when its start is complete: with a postStart hook, after that.
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

// incomplete says whether a running container's start is not complete. A container that is being stopped is past that.
func (s *statuser) incomplete(c *v1.Container, id string) bool {
	run := s.memory.Run(id)
	return run.Stop.IsZero() && !s.memory.PostStarted(c, id) && run.Hooks.PostStart != Failed && s.memory.Phase == pod.Syncing
}

// fill sets what the latest attempt says, and lastState from the one before.
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
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil { // an API server without the feature has dropped the field, and would drop this one
		st.StopSignal = signalOf(latest.StopSignal)
	}
	if latest.remembered != nil && old != nil { // the engine no longer knows
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

// endOf is the end of an attempt. What the engine no longer knows (the message of a pod whose directory is gone) is taken
// from the old status.
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
	if old != nil && out.Message == "" {
		for _, known := range []*v1.ContainerStateTerminated{old.State.Terminated, old.LastTerminationState.Terminated} {
			if known != nil && known.ContainerID == out.ContainerID {
				out.Message = known.Message
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

// EndReason is the reason of a terminated container, as upstream has it.
func EndReason(c pod.Container) string {
	switch {
	case c.OOMKilled:
		return "OOMKilled"
	case c.Error != "":
		return "ContainerCannotRun"
	case c.ExitCode == 0:
		return "Completed"
	}
	return "Error"
}

// waiting shows why a container that is to be started is not, where there is a reason to show; without one the last state stands.
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
	until, delay := backOff(s.memory, c, list)
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

// restarting shows the containers of a pod that is being restarted in place and are already removed.
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

// signalOf is the stop signal of a container as the API names it. The engine keeps it as the image has it: SIGQUIT, QUIT or 3.
func signalOf(text string) *v1.Signal {
	if text == "" {
		return new(v1.SIGTERM)
	}
	if text = strings.ToUpper(text); text[0] >= 'A' && !strings.HasPrefix(text, "SIG") {
		text = "SIG" + text
	}
	return new(v1.Signal(text))
}

// mountStatuses are the mounts of the spec. recursive says that they could be made read-only recursively.
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
