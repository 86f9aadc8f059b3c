package podspec

import (
	v1 "k8s.io/api/core/v1"
)

// FindStatus returns the container's status in an API status, nil if there is none.
func FindStatus(status *v1.PodStatus, kind Kind, name string) *v1.ContainerStatus {
	if status == nil {
		return nil
	}
	list := status.ContainerStatuses
	switch kind {
	case Init:
		list = status.InitContainerStatuses
	case Ephemeral:
		list = status.EphemeralContainerStatuses
	}
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// IsTerminal reports whether a pod never leaves a phase.
func IsTerminal(phase v1.PodPhase) bool { return phase == v1.PodFailed || phase == v1.PodSucceeded }

// FindCondition returns the condition of a type, as a pointer into list, and its index; nil and -1 if there is none.
func FindCondition(list []v1.PodCondition, kind v1.PodConditionType) (int, *v1.PodCondition) {
	for i := range list {
		if list[i].Type == kind {
			return i, &list[i]
		}
	}
	return -1, nil
}
