package plan

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// facts are the inputs of Plan and Status, with the questions that both ask about them.
type facts struct {
	pod      *v1.Pod
	observed pod.Observed // seen.Engine with seen.Network
	seen     *Seen
	memory   *Memory // of seen
	now      time.Time
}

func newFacts(desired *v1.Pod, seen *Seen, now time.Time) *facts {
	return &facts{pod: desired, observed: seen.Observed(), seen: seen, memory: &seen.Memory, now: now}
}

// attempts lists the known started attempts of a container, newest first.
func (f *facts) attempts(kind podspec.Kind, container *v1.Container) []past {
	return attempts(f.observed, &f.memory.Last, kind, container)
}

func (f *facts) running(match func(pod.Container) bool) []pod.Container {
	var list []pod.Container
	for _, c := range f.observed.Containers {
		if c.State == pod.Running && (match == nil || match(c)) {
			list = append(list, c)
		}
	}
	return list
}

// starting reports whether the named container is being started.
func (f *facts) starting(name string) bool {
	return f.memory.busy(func(s Step) bool { return does(s, pod.StartContainer) && s.Of().Container == name })
}

// onContainer reports whether a step in flight creates or stops the named container, or runs a hook in it.
func (f *facts) onContainer(name string) bool {
	return f.memory.busy(func(s Step) bool { return s.Of().Container == name && !does(s, pod.RemoveContainer) })
}

// unattached reports whether a sandbox or container waits for its network.
func (f *facts) unattached(id string) bool { return f.seen.Network[pod.EngineID(id)].Waits }

// usable reports whether containers can run in a sandbox. A sandbox without an address is not usable. But while containers run in it, a
// missing address is more likely a brief gap in the engine's data than a reason to stop the pod.
func (f *facts) usable(box pod.Sandbox) bool {
	if !box.Running || f.left(box) {
		return false
	}
	return f.pod.Spec.HostNetwork || len(box.Addresses) > 0 || len(f.running(func(c pod.Container) bool { return c.SandboxID == box.ID })) > 0
}

// left reports that a sandbox got a new network namespace while its containers existed, as after a manual restart: the containers were
// started when it was attached, and now it is not.
func (f *facts) left(box pod.Sandbox) bool {
	return f.unattached(box.ID) && slices.ContainsFunc(f.observed.Containers, func(c pod.Container) bool { return c.SandboxID == box.ID && c.State != pod.Created })
}

// wantsSandbox reports whether anything would run in a new sandbox if there is none or it is dead. A pod that is never restarted gets a
// second sandbox only if none of its containers ever started.
func (f *facts) wantsSandbox() bool {
	ran := false
	for kind, c := range podspec.Containers(f.pod) {
		ran = ran || kind != podspec.Ephemeral && len(f.attempts(kind, c)) > 0
	}
	for i := range f.pod.Spec.Containers {
		c := &f.pod.Spec.Containers[i]
		list := f.attempts(podspec.App, c)
		switch {
		case len(list) == 0:
			if !ran || f.pod.Spec.RestartPolicy != v1.RestartPolicyNever {
				return true
			}
		case list[0].State != pod.Exited || f.comesBack(podspec.App, c, list[0]):
			return true
		}
	}
	return false
}

// comesBack reports whether an ended attempt is followed by another.
func (f *facts) comesBack(kind podspec.Kind, c *v1.Container, ended past) bool {
	switch {
	case kind == podspec.Ephemeral:
		return false
	case f.memory.Run(ended.ID).Replace, kind == podspec.Init && podspec.IsSidecar(c):
		return true
	case kind == podspec.Init && ended.ExitCode == 0:
		return false
	}
	return podspec.RestartsAfter(f.pod, c, ended.ExitCode)
}

// sidecarIndex is the index of c among the init containers if c is restartable, else -1.
func (f *facts) sidecarIndex(c pod.Container) int {
	for i := range f.pod.Spec.InitContainers {
		if f.pod.Spec.InitContainers[i].Name == c.Name && podspec.IsSidecar(&f.pod.Spec.InitContainers[i]) {
			return i
		}
	}
	return -1
}

// needs is the difference between a running container and its grant. An update that the engine accepted without effect is not repeated.
func (f *facts) needs(kind podspec.Kind, spec *v1.Container, c pod.Container) change {
	need := changeOf(f.pod, kind, spec, c, &f.memory.Last)
	need.update = need.update && f.memory.Run(c.ID).Told != need.want
	return need
}

// mustEnd returns why the pod must end, or nil. It records a future deadline in d.
func (f *facts) mustEnd(d *Decision) *pod.Rejection {
	if seconds := f.pod.Spec.ActiveDeadlineSeconds; seconds != nil && !f.memory.Last.StartTime.IsZero() {
		began := f.memory.Began
		if began.IsZero() {
			began = f.memory.Last.StartTime.Time
		}
		deadline := began.Add(podspec.Seconds(*seconds))
		if !f.now.Before(deadline) {
			return &pod.Rejection{Reason: ReasonDeadline, Message: messageDeadline}
		}
		d.lookAt(deadline)
	}
	if n := podspec.ConcurrentContainers(&f.pod.Spec); n > 1 && !f.seen.NeedsSandbox(f.pod) {
		return &pod.Rejection{Reason: reasonUnsupported, Message: fmt.Sprintf(
			"the pod has %d containers that run at the same time, but on this host its containers cannot share a network, so that a pod has one: "+
				"split the pod, or use a node with Windows Server version 1709 or later and no Hyper-V isolation", n)}
	}
	return nil
}

// appRan reports whether an app container was started in the current sandbox.
func (f *facts) appRan() bool {
	box := f.observed.NewestSandbox()
	return slices.ContainsFunc(f.observed.Containers, func(c pod.Container) bool {
		return c.Kind == podspec.App && c.Started() && (box == nil || c.SandboxID == box.ID)
	})
}

// restartingAll reports whether the pod is restarting all its containers.
func (f *facts) restartingAll() bool {
	if !podspec.MayRestartAll(f.pod) || f.memory.Phase != pod.Syncing {
		return false
	}
	present := 0
	for kind, c := range podspec.Containers(f.pod) {
		if kind == podspec.Ephemeral {
			continue
		}
		list := attempts(f.observed, &f.memory.Last, kind, c)
		if len(list) > 0 && list[0].State == pod.Exited && podspec.RestartsAll(c, list[0].ExitCode) {
			return true
		}
		if len(list) > 0 && list[0].remembered == nil {
			present++
		}
	}
	_, was := podspec.FindCondition(f.memory.Last.Conditions, v1.AllContainersRestarting)
	return present == 0 && was != nil && was.Status == v1.ConditionTrue
}

// canStart reports whether the pod has a sandbox in which containers can run; without sandboxes, whether one of its containers runs.
func (f *facts) canStart() bool {
	if !f.seen.NeedsSandbox(f.pod) {
		return slices.ContainsFunc(f.observed.Containers, func(c pod.Container) bool { return c.State == pod.Running })
	}
	box := f.observed.NewestSandbox()
	return box != nil && f.usable(*box)
}
