package podspec

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// defaultGrace is terminationGracePeriodSeconds for a pod without one.
const defaultGrace = 30 * time.Second

// RestartsAfter reports whether a container that exited with code is restarted (KEP-5307): its own rules apply first, then its own policy,
// then the pod's.
func RestartsAfter(pod *v1.Pod, container *v1.Container, code int) bool {
	policy := pod.Spec.RestartPolicy
	if container.RestartPolicy != nil {
		if rule := matchingRule(container, code); rule != nil &&
			(rule.Action == v1.ContainerRestartRuleActionRestart || rule.Action == v1.ContainerRestartRuleActionRestartAllContainers) {
			return true
		}
		policy = v1.RestartPolicy(*container.RestartPolicy)
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// RestartsAfterKill reports whether a container that we kill for a failed probe is restarted, whatever its exit code.
func RestartsAfterKill(pod *v1.Pod, container *v1.Container) bool {
	if container.RestartPolicy != nil {
		return *container.RestartPolicy != v1.ContainerRestartPolicyNever
	}
	return pod.Spec.RestartPolicy != v1.RestartPolicyNever
}

func matchingRule(container *v1.Container, code int) *v1.ContainerRestartRule {
	for i := range container.RestartPolicyRules {
		rule := &container.RestartPolicyRules[i]
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, int32(code))
		switch rule.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if in {
				return rule
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !in {
				return rule
			}
		}
	}
	return nil
}

// RestartsAll reports whether this container's exit with code restarts every container of the pod in place (KEP-5532).
func RestartsAll(container *v1.Container, code int) bool {
	rule := matchingRule(container, code)
	return rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// MayRestartAll reports whether any container has a rule that restarts all containers.
func MayRestartAll(pod *v1.Pod) bool {
	for _, c := range Containers(pod) {
		for i := range c.RestartPolicyRules {
			if c.RestartPolicyRules[i].Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// StopGrace is the grace period of a pod's containers, at least one second.
func StopGrace(pod *v1.Pod) time.Duration {
	grace := defaultGrace
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = Seconds(*s)
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil && pod.DeletionTimestamp != nil {
		grace = Seconds(*s)
	}
	return max(grace, time.Second)
}

// ProbeGrace is a container's grace period after a failed probe.
func ProbeGrace(pod *v1.Pod, probe *v1.Probe) time.Duration {
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return max(Seconds(*probe.TerminationGracePeriodSeconds), time.Second)
	}
	return StopGrace(pod)
}
