package plan

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// maxMessages is the limit in bytes for all termination messages in one pod's status; each container gets an equal share.
const maxMessages = 12 * 1024

// Status is the status that the API server should have for a pod. It is pure. It keeps from seen.Memory.Last what must not change back:
// start time, transition times, restart counts, a terminal phase, and the addresses of a pod that has ended.
func Status(desired *v1.Pod, seen Seen, now time.Time) v1.PodStatus {
	s := &statuser{facts: newFacts(desired, &seen, now)}
	last := &s.memory.Last
	out := v1.PodStatus{ObservedGeneration: max(desired.Generation, last.ObservedGeneration), QOSClass: podspec.QOSOf(desired), StartTime: last.StartTime}
	if out.StartTime.IsZero() {
		out.StartTime = apiTimePointer(now)
	}
	out.Resources, out.AllocatedResources = s.podResources()
	out.InitContainerStatuses, out.ContainerStatuses, out.EphemeralContainerStatuses = s.list(podspec.Init), s.list(podspec.App), s.list(podspec.Ephemeral)
	if s.neverLetIn() {
		out.InitContainerStatuses, out.ContainerStatuses, out.EphemeralContainerStatuses = nil, nil, nil
	}
	s.restarting(&out)
	if s.memory.Phase == pod.Terminated {
		s.endContainers(&out)
	}
	s.phase(&out)
	s.addresses(&out)
	trimMessages(&out)
	out.Conditions = s.conditions(&out)
	return out
}

// statuser builds one status.
type statuser struct{ *facts }

// apiTimePointer is t with the precision of the API server.
func apiTimePointer(t time.Time) *metav1.Time {
	out := metav1.NewTime(t).Rfc3339Copy()
	return &out
}

// phase sets phase, reason and message. A terminal phase is set when nothing runs any more, and never changes.
func (s *statuser) phase(out *v1.PodStatus) {
	last := &s.memory.Last
	phase := s.phaseOf(out)
	if ended := s.memory.End.Why; ended != nil {
		phase = v1.PodFailed
	} else if s.memory.Phase == pod.Terminated && !podspec.IsTerminal(phase) && !podspec.IsStatic(s.pod) {
		phase = v1.PodFailed
	}
	for _, known := range []v1.PodPhase{last.Phase, s.pod.Status.Phase} {
		if podspec.IsTerminal(known) && !podspec.IsStatic(s.pod) {
			phase = known
		}
	}
	if podspec.IsTerminal(phase) && !podspec.IsTerminal(last.Phase) && s.memory.Phase != pod.Terminated {
		phase = last.Phase
		if phase == "" {
			phase = v1.PodPending
		}
	}
	out.Phase = phase
	switch {
	case s.memory.End.Why != nil && podspec.IsTerminal(phase):
		out.Reason, out.Message = s.memory.End.Why.Reason, s.memory.End.Why.Message
	case phase == last.Phase:
		out.Reason, out.Message = last.Reason, last.Message
	}
}

// counts are a pod's containers by state.
type counts struct {
	running, waiting, stopped, succeeded, final int
	initPending, initFailed, sidecarsPending    int
	unknown                                     int
}

// phaseOf is the phase that follows from the container statuses alone.
func (s *statuser) phaseOf(out *v1.PodStatus) v1.PodPhase {
	var n counts
	for kind, c := range podspec.Containers(s.pod) {
		st := podspec.FindStatus(out, kind, c.Name)
		switch {
		case kind == podspec.Ephemeral:
		case st == nil:
			n.unknown++
		case kind == podspec.App:
			s.countApp(&n, c, st)
		case podspec.IsSidecar(c):
			countSidecar(&n, st)
		default:
			s.countInit(&n, c, st)
		}
	}
	switch {
	case n.initFailed > 0:
		return v1.PodFailed
	case n.initPending > 0, n.sidecarsPending > 0 && !s.appRan(), n.waiting > 0:
		return v1.PodPending
	case n.running > 0 && n.unknown == 0:
		return v1.PodRunning
	case n.running == 0 && n.stopped > 0 && n.unknown == 0:
		switch {
		case n.stopped != n.final && (s.memory.Phase != pod.Terminated || podspec.IsStatic(s.pod)):
			return v1.PodRunning
		case n.stopped == n.succeeded:
			return v1.PodSucceeded
		}
		return v1.PodFailed
	}
	return v1.PodPending
}

// ending is how the container last ended; nil if it never did.
func ending(st *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if st.State.Terminated != nil {
		return st.State.Terminated
	}
	if st.State.Waiting != nil {
		return st.LastTerminationState.Terminated
	}
	return nil
}

func (s *statuser) countApp(n *counts, c *v1.Container, st *v1.ContainerStatus) {
	if st.State.Running != nil {
		n.running++
		return
	}
	end := ending(st)
	if end == nil {
		n.waiting++
		return
	}
	n.stopped++
	if end.Reason != reasonRestartingAll && !podspec.RestartsAfter(s.pod, c, int(end.ExitCode)) {
		n.final++
	}
	if st.State.Terminated != nil && end.ExitCode == 0 {
		n.succeeded++
	}
}

func countSidecar(n *counts, st *v1.ContainerStatus) {
	switch {
	case st.State.Running != nil:
		n.running++
		if !podspec.IsTrue(st.Started) {
			n.sidecarsPending++
		}
	case st.State.Waiting != nil && st.LastTerminationState.Terminated == nil:
		n.waiting++
		n.sidecarsPending++
	}
}

func (s *statuser) countInit(n *counts, c *v1.Container, st *v1.ContainerStatus) {
	end := ending(st)
	switch {
	case end == nil:
		n.initPending++
	case end.ExitCode != 0 && end.Reason != reasonRestartingAll && !podspec.RestartsAfter(s.pod, c, int(end.ExitCode)):
		n.initFailed++
	}
}

// neverLetIn reports that the pod was refused before anything was started: it has no container statuses.
func (s *statuser) neverLetIn() bool {
	begun := func(st v1.ContainerStatus) bool {
		return st.State.Waiting == nil || st.LastTerminationState.Terminated != nil
	}
	return s.memory.End.Why != nil && len(s.observed.Containers)+len(s.observed.Sandboxes) == 0 &&
		!slices.ContainsFunc(s.memory.Last.ContainerStatuses, begun) && !slices.ContainsFunc(s.memory.Last.InitContainerStatuses, begun)
}

// endContainers marks every started container as terminated: nothing runs any more, and without a known exit it counts as failed.
func (s *statuser) endContainers(out *v1.PodStatus) {
	end := func(list []v1.ContainerStatus) {
		for i := range list {
			st := &list[i]
			if st.State.Terminated == nil {
				if last := st.LastTerminationState.Terminated; st.State.Waiting != nil && last != nil && last.ContainerID == st.ContainerID && last.ContainerID != "" {
					st.State, st.LastTerminationState = v1.ContainerState{Terminated: last}, v1.ContainerState{}
				} else {
					st.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: reasonUnknown, Message: messageUnknown, ExitCode: 137}}
				}
			}
			st.Ready, st.Started = st.Ready && st.State.Terminated.ExitCode == 0, new(false)
		}
	}
	begun := func(st v1.ContainerStatus) bool {
		return st.State.Waiting == nil || st.LastTerminationState.Terminated != nil
	}
	if s.initialized(out) {
		end(out.ContainerStatuses)
	}
	tried := 0
	for i, st := range out.InitContainerStatuses {
		if begun(st) || i == 0 {
			tried = i + 1
		}
	}
	end(out.InitContainerStatuses[:tried])
}

// initialized reports whether initialization is complete, so that app containers could start.
func (s *statuser) initialized(out *v1.PodStatus) bool {
	n := len(s.pod.Spec.InitContainers)
	if n == 0 {
		return true
	}
	for _, st := range out.ContainerStatuses {
		if st.State.Waiting == nil || st.LastTerminationState.Terminated != nil {
			return true
		}
	}
	st := podspec.FindStatus(out, podspec.Init, s.pod.Spec.InitContainers[n-1].Name)
	if podspec.IsSidecar(&s.pod.Spec.InitContainers[n-1]) {
		return st != nil && st.State.Running != nil && podspec.IsTrue(st.Started)
	}
	return st != nil && st.State.Terminated != nil && st.State.Terminated.ExitCode == 0
}

// addresses sets host and pod addresses. A pod that has ended, or whose sandbox is being replaced, keeps its last addresses.
func (s *statuser) addresses(out *v1.PodStatus) {
	for i, ip := range s.seen.Node.HostIPs {
		if i == 0 {
			out.HostIP = ip.String()
		}
		out.HostIPs = append(out.HostIPs, v1.HostIP{IP: ip.String()})
	}
	addrs := pod.PodAddresses(s.pod, s.observed, s.seen.Node.HostIPs)
	for _, a := range addrs {
		out.PodIPs = append(out.PodIPs, v1.PodIP{IP: a.String()})
	}
	if len(out.PodIPs) == 0 || s.pod.Spec.HostNetwork && len(s.memory.Last.PodIPs) > 0 {
		out.PodIPs = slices.Clone(s.memory.Last.PodIPs)
	}
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
}

// trimMessages cuts each termination message to its share of maxMessages.
func trimMessages(out *v1.PodStatus) {
	n := len(out.InitContainerStatuses) + len(out.ContainerStatuses) + len(out.EphemeralContainerStatuses)
	for _, list := range [][]v1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses, out.EphemeralContainerStatuses} {
		for i := range list {
			for _, end := range []**v1.ContainerStateTerminated{&list[i].State.Terminated, &list[i].LastTerminationState.Terminated} {
				if *end != nil && len((*end).Message) > maxMessages/n {
					short := (*end).DeepCopy()
					short.Message = short.Message[:maxMessages/n]
					*end = short
				}
			}
		}
	}
}
