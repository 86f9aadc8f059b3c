package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// minGrace is the minimum time between a container's stop signal and the kill, so that every container receives the signal first.
const minGrace = 2 * time.Second

// past is what is known of one attempt.
type past struct {
	pod.Container
	// remembered is what the API server knows of an attempt that the engine no longer has; nil if the engine has it.
	remembered *v1.ContainerStateTerminated
}

// attempts lists a container's known started attempts, newest first: those that the engine has and, if the engine lost the latest one, that
// one from the API server. Without the latter, a container that must not be restarted would run again.
func attempts(observed pod.Observed, last *v1.PodStatus, kind podspec.Kind, container *v1.Container) []past {
	var list []past
	for i := range observed.Containers {
		if c := &observed.Containers[i]; c.Name == container.Name && c.Started() {
			list = append(list, past{Container: *c})
		}
	}
	slices.SortStableFunc(list, func(a, b past) int { return cmp.Compare(b.Attempt, a.Attempt) })
	if lost := lostAttempt(observed, last, kind, container); lost != nil && (len(list) == 0 || lost.Attempt > list[0].Attempt) {
		list = slices.Insert(list, 0, *lost)
	}
	return list
}

const (
	reasonUnknown  = "ContainerStatusUnknown"
	messageUnknown = "The container could not be located when the pod was terminated"
)

func lostAttempt(observed pod.Observed, last *v1.PodStatus, kind podspec.Kind, container *v1.Container) *past {
	old := podspec.FindStatus(last, kind, container.Name)
	if old == nil || old.ContainerID == "" {
		return nil
	}
	id := strings.TrimPrefix(old.ContainerID, pod.ContainerIDPrefix)
	if slices.ContainsFunc(observed.Containers, func(c pod.Container) bool { return c.ID == id }) {
		return nil
	}
	state := old.State.Terminated
	if state == nil {
		state = old.LastTerminationState.Terminated
	}
	if old.State.Running != nil || state == nil || (old.State.Waiting != nil && state.ContainerID != old.ContainerID) {
		state = &v1.ContainerStateTerminated{Reason: reasonUnknown, Message: messageUnknown, ExitCode: 137, ContainerID: old.ContainerID}
		if old.State.Running != nil {
			state.StartedAt = old.State.Running.StartedAt
		}
	}
	lost := past{remembered: state}
	lost.Container = pod.Container{
		ID: id, Name: container.Name, Kind: kind, Attempt: int(old.RestartCount), Hash: podspec.Hash(container), State: pod.Exited,
		StartedAt: state.StartedAt.Time, FinishedAt: state.FinishedAt.Time, ExitCode: int(state.ExitCode), Image: old.Image, ImageID: old.ImageID,
	}
	if box := observed.NewestSandbox(); box != nil && state.StartedAt.After(box.CreatedAt) {
		lost.SandboxID = box.ID
	}
	return &lost
}

// nextAttempt numbers the next start. Restart counts never decrease, even if the engine lost attempts. A container that was created but
// never started keeps its number.
func nextAttempt(observed pod.Observed, last *v1.PodStatus, kind podspec.Kind, name string) int {
	next := 0
	for _, c := range observed.Containers {
		if c.Name != name {
			continue
		}
		if c.Started() {
			next = max(next, c.Attempt+1)
		} else {
			next = max(next, c.Attempt)
		}
	}
	if old := podspec.FindStatus(last, kind, name); old != nil {
		known := int(old.RestartCount)
		if old.ContainerID != "" && !slices.ContainsFunc(observed.Containers, func(c pod.Container) bool {
			return pod.ContainerIDPrefix+c.ID == old.ContainerID && !c.Started()
		}) {
			known++
		}
		next = max(next, known)
	}
	return next
}
