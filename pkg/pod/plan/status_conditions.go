package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// ownConditions are the conditions that only a kubelet writes. All others in a pod's status stay as they are on the API server.
var ownConditions = []v1.PodConditionType{
	v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled, v1.AllContainersRestarting,
	v1.PodResizePending, v1.PodResizeInProgress,
}

// conditions returns all conditions, starting with those that others wrote.
func (s *statuser) conditions(out *v1.PodStatus) []v1.PodCondition {
	var list []v1.PodCondition
	for _, c := range s.pod.Status.Conditions {
		if !slices.Contains(ownConditions, c.Type) {
			list = append(list, c)
		}
	}
	foreign := len(list)
	list = append(list, s.condition(v1.PodReadyToStartContainers, s.canStart(), "", ""))
	list = append(list, s.initializedCondition(out))
	ready, reason, message := s.containersReady(out)
	containersReady := s.condition(v1.ContainersReady, ready, reason, message)
	if ready {
		if message = s.closedGates(list[:foreign]); message != "" {
			ready, reason = false, "ReadinessGatesNotReady"
		}
	}
	list = append(list, s.condition(v1.PodReady, ready, reason, message), containersReady, s.condition(v1.PodScheduled, true, "", ""))
	if podspec.MayRestartAll(s.pod) {
		list = append(list, s.restartingCondition(out))
	}
	list = append(list, s.resizeConditions()...)
	if s.memory.End.Disrupted {
		if i, old := podspec.FindCondition(list[:foreign], v1.DisruptionTarget); old != nil {
			list, foreign = slices.Delete(list, i, i+1), foreign-1
		}
		list = append(list, s.condition(v1.DisruptionTarget, true, v1.PodReasonTerminationByKubelet, cmp.Or(s.memory.End.Why.Disruption, s.memory.End.Why.Message)))
	}
	for i := foreign; i < len(list); i++ {
		list[i].LastTransitionTime = *apiTimePointer(s.now)
		if _, old := podspec.FindCondition(s.memory.Last.Conditions, list[i].Type); old != nil && old.Status == list[i].Status && !old.LastTransitionTime.IsZero() {
			list[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	return list
}

func (s *statuser) condition(kind v1.PodConditionType, ok bool, reason, message string) v1.PodCondition {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: s.pod.Generation}
	if ok {
		c.Status = v1.ConditionTrue
	}
	return c
}

func names(title string, list []string) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("containers with %s status: %s", title, list)
}

func (s *statuser) initializedCondition(out *v1.PodStatus) v1.PodCondition {
	var unknown, incomplete []string
	for i := range s.pod.Spec.InitContainers {
		c := &s.pod.Spec.InitContainers[i]
		st := podspec.FindStatus(out, podspec.Init, c.Name)
		switch {
		case st == nil:
			unknown = append(unknown, c.Name)
		case podspec.IsSidecar(c) && !podspec.IsTrue(st.Started), !podspec.IsSidecar(c) && !st.Ready:
			incomplete = append(incomplete, c.Name)
		}
	}
	ok := func(reason string) v1.PodCondition { return s.condition(v1.PodInitialized, true, reason, "") }
	if out.Phase == v1.PodSucceeded && len(unknown) == 0 {
		return ok("PodCompleted")
	}
	for _, st := range out.ContainerStatuses {
		if st.State.Running != nil || st.State.Terminated != nil || podspec.IsTrue(st.Started) {
			return ok("")
		}
	}
	var parts []string
	for _, part := range []string{names("unknown", unknown), names("incomplete", incomplete)} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return ok("")
	}
	if _, old := podspec.FindCondition(s.memory.Last.Conditions, v1.PodInitialized); old != nil && old.Status == v1.ConditionTrue {
		return ok("")
	}
	return s.condition(v1.PodInitialized, false, "ContainersNotInitialized", strings.Join(parts, ", "))
}

func (s *statuser) containersReady(out *v1.PodStatus) (ready bool, reason, message string) {
	var unknown, unready []string
	for kind, c := range podspec.Containers(s.pod) {
		if kind == podspec.Ephemeral || kind == podspec.Init && !podspec.IsSidecar(c) {
			continue
		}
		switch st := podspec.FindStatus(out, kind, c.Name); {
		case st == nil:
			unknown = append(unknown, c.Name)
		case !st.Ready:
			unready = append(unready, c.Name)
		}
	}
	switch {
	case out.Phase == v1.PodSucceeded && len(unknown) == 0:
		return false, "PodCompleted", ""
	case out.Phase == v1.PodFailed:
		return false, "PodFailed", ""
	}
	var parts []string
	for _, part := range []string{names("unknown", unknown), names("unready", unready)} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) > 0 {
		return false, "ContainersNotReady", strings.Join(parts, ", ")
	}
	return true, "", ""
}

// closedGates says which of the spec's readiness gates are not true.
func (s *statuser) closedGates(conditions []v1.PodCondition) string {
	var closed []string
	for _, gate := range s.pod.Spec.ReadinessGates {
		switch _, c := podspec.FindCondition(conditions, gate.ConditionType); {
		case c == nil:
			closed = append(closed, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case c.Status != v1.ConditionTrue:
			closed = append(closed, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", gate.ConditionType, c.Status))
		}
	}
	return strings.Join(closed, ", ")
}

func (s *statuser) restartingCondition(out *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case out.Phase == v1.PodSucceeded:
		c.Reason = "PodCompleted"
	case out.Phase == v1.PodFailed:
		c.Reason = "PodFailed"
	case s.restartingAll() && len(s.observed.Containers) > 0:
		c.Status, c.Reason = v1.ConditionTrue, "RestartAllContainersStarted"
	}
	return c
}
