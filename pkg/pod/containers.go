package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// ContainerIDPrefix stands before the engine's id in containerStatuses.containerID.
const ContainerIDPrefix = "docker://"

// defaultGrace is terminationGracePeriodSeconds where a pod has none.
const defaultGrace = 30 * time.Second

// minGrace is what every container gets between the stop signal and the kill, so that none is killed unasked.
const minGrace = 2 * time.Second

// isolationAnnotation asks for a virtual machine around each container of the pod ("hyperv", upstream had it until 1.20) or for none ("process").
const isolationAnnotation = "experimental.windows.kubernetes.io/isolation-type"

// Containers goes through all containers of the spec: init, then app, then ephemeral ones, each list in order. What it yields belongs
// to pod.
func Containers(pod *v1.Pod) iter.Seq2[Kind, *v1.Container] {
	return func(yield func(Kind, *v1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(Init, &pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(App, &pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(Ephemeral, (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// FindContainer returns the container of that name; ok false: the spec has none. Names are unique over all three lists.
func FindContainer(pod *v1.Pod, name string) (kind Kind, container *v1.Container, ok bool) {
	for kind, c := range Containers(pod) {
		if c.Name == name {
			return kind, c, true
		}
	}
	return "", nil, false
}

// Hash tells whether a container still is what the spec wants. Only name and image count, as upstream: nothing else of a running
// pod's container may change in a way that needs a restart, and new defaults of an API server must not restart anything.
func Hash(container *v1.Container) string {
	data, err := json.Marshal(map[string]string{"image": container.Image, "name": container.Name})
	if err != nil {
		panic(err) // strings always encode
	}
	h := fnv.New32a()
	h.Write(data)
	return fmt.Sprintf("%08x", h.Sum32())
}

// needsSandbox says whether pod's containers share the network of a sandbox. Where they do not, the pod has one container at a time.
func (k *Knowledge) needsSandbox(pod *v1.Pod) bool {
	if k.Platform.OS == "windows" {
		handler := ""
		if k.Handler != nil {
			handler = *k.Handler
		}
		if isolation, _ := Isolation(pod, handler); isolation == "hyperv" {
			return false
		}
	}
	return k.Platform.SharedNetwork
}

// shouldRestart says whether a container that exited with code is to be started again (KEP-5307): its own rules come first, then its
// own policy, then the pod's.
func shouldRestart(pod *v1.Pod, container *v1.Container, code int) bool {
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

// restartsAfterKill says whether a container that we kill for a failed probe comes back whatever its exit code is.
func restartsAfterKill(pod *v1.Pod, container *v1.Container) bool {
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

// restartsAll says whether the exit of this container with code restarts every container of the pod in place (KEP-5532).
func restartsAll(container *v1.Container, code int) bool {
	rule := matchingRule(container, code)
	return rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers
}

// couldRestartAll says whether any container has a rule that restarts all.
func couldRestartAll(pod *v1.Pod) bool {
	for _, c := range Containers(pod) {
		for i := range c.RestartPolicyRules {
			if c.RestartPolicyRules[i].Action == v1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}

// stopGrace is how long a pod's containers get to stop.
func stopGrace(pod *v1.Pod) time.Duration {
	grace := defaultGrace
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = Seconds(*s)
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil && pod.DeletionTimestamp != nil {
		grace = Seconds(*s)
	}
	return max(grace, time.Second)
}

// probeGrace is how long a container gets to stop after a failed probe.
func probeGrace(pod *v1.Pod, probe *v1.Probe) time.Duration {
	if probe != nil && probe.TerminationGracePeriodSeconds != nil {
		return max(Seconds(*probe.TerminationGracePeriodSeconds), time.Second)
	}
	return stopGrace(pod)
}

// past is one attempt as far as it is known.
type past struct {
	Container
	// remembered is what the API server knows of an attempt of which the engine has nothing any more; nil where the engine has it.
	remembered *v1.ContainerStateTerminated
}

// attempts lists what is known of a container's started attempts, newest first: what the engine has, and before that the last one that
// the API server remembers where somebody removed it from the engine. Without the second, a container that is not to be restarted
// would run again.
func attempts(observed Observed, last *v1.PodStatus, kind Kind, container *v1.Container) []past {
	var list []past
	for _, c := range observed.Containers {
		if c.Name == container.Name && started(c) {
			list = append(list, past{Container: c})
		}
	}
	slices.SortStableFunc(list, func(a, b past) int { return cmp.Compare(b.Attempt, a.Attempt) })
	if lost := lostAttempt(observed, last, kind, container); lost != nil && (len(list) == 0 || lost.Attempt > list[0].Attempt) {
		list = slices.Insert(list, 0, *lost)
	}
	return list
}

// started says whether the attempt got as far as a start: a container whose start failed did.
func started(c Container) bool { return c.State != Created || c.Error != "" }

const (
	reasonUnknown  = "ContainerStatusUnknown"
	messageUnknown = "The container could not be located when the pod was terminated"
)

func lostAttempt(observed Observed, last *v1.PodStatus, kind Kind, container *v1.Container) *past {
	old := findStatus(last, kind, container.Name)
	if old == nil || old.ContainerID == "" {
		return nil
	}
	id := strings.TrimPrefix(old.ContainerID, ContainerIDPrefix)
	if slices.ContainsFunc(observed.Containers, func(c Container) bool { return c.ID == id }) {
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
	lost.Container = Container{
		ID: id, Name: container.Name, Kind: kind, Attempt: int(old.RestartCount), Hash: Hash(container), State: Exited,
		StartedAt: state.StartedAt.Time, FinishedAt: state.FinishedAt.Time, ExitCode: int(state.ExitCode), Image: old.Image, ImageID: old.ImageID,
	}
	if box := newestSandbox(observed); box != nil && state.StartedAt.After(box.CreatedAt) {
		lost.SandboxID = box.ID
	}
	return &lost
}

// nextAttempt numbers the next start: restart counts never go back, whatever the engine has forgotten. A container that was made and
// never started keeps its number.
func nextAttempt(observed Observed, last *v1.PodStatus, kind Kind, name string) int {
	next := 0
	for _, c := range observed.Containers {
		if c.Name != name {
			continue
		}
		if started(c) {
			next = max(next, c.Attempt+1)
		} else {
			next = max(next, c.Attempt)
		}
	}
	if old := findStatus(last, kind, name); old != nil {
		known := int(old.RestartCount)
		if old.ContainerID != "" && !slices.ContainsFunc(observed.Containers, func(c Container) bool {
			return ContainerIDPrefix+c.ID == old.ContainerID && !started(c)
		}) {
			known++
		}
		next = max(next, known)
	}
	return next
}

func newestSandbox(observed Observed) *Sandbox {
	var newest *Sandbox
	for i := range observed.Sandboxes {
		if s := &observed.Sandboxes[i]; newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
	}
	return newest
}

// findStatus returns the container's status in an API status, nil if there is none.
func findStatus(status *v1.PodStatus, kind Kind, name string) *v1.ContainerStatus {
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
