package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/podspec"
)

// candidate is a pod that could be evicted, with its usage.
type candidate struct {
	pod   *v1.Pod
	stats *summary.PodStats // memory and processes; nil: not measured
	disk  *disk.Pod         // the figures that limits apply to; nil: not measured or not needed
}

// measured reports whether the candidate's use of a signal's resource is known.
func (c candidate) measured(signal Signal) bool {
	if signal.onDisk() {
		return c.disk != nil && !c.disk.Unknown()
	}
	return c.stats != nil
}

// rank sorts pods, first to evict first: pods that were not measured, then pods above their requests, then by lower
// priority, then by how far they exceed their requests. Processes have no requests: there priority decides, then their
// number. It is pure.
func rank(all []candidate, signal Signal, dedicated bool) []candidate {
	out := slices.Clone(all)
	starved := signal.resource()
	slices.SortStableFunc(out, func(a, b candidate) int {
		if x, y := a.measured(signal), b.measured(signal); x != y {
			return before(y)
		}
		if starved != pids {
			if x, y := a.excess(signal, dedicated) > 0, b.excess(signal, dedicated) > 0; x != y {
				return before(x)
			}
		}
		return cmp.Or(cmp.Compare(priority(a.pod), priority(b.pod)),
			cmp.Compare(b.excess(signal, dedicated), a.excess(signal, dedicated)),
			cmp.Compare(a.pod.Namespace+"/"+a.pod.Name, b.pod.Namespace+"/"+b.pod.Name))
	})
	return out
}

func before(first bool) int {
	if first {
		return -1
	}
	return 1
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// excess returns how much a pod's use of a signal's resource exceeds its request.
func (c candidate) excess(signal Signal, dedicated bool) int64 {
	request := func(name v1.ResourceName) int64 {
		q := helper.PodRequests(c.pod, helper.PodResourcesOptions{})[name]
		return q.Value()
	}
	switch signal.resource() {
	case v1.ResourceMemory:
		if c.stats == nil {
			return 0
		}
		return workingSet(c.stats.Memory) - request(v1.ResourceMemory)
	case pids:
		if c.stats != nil && c.stats.ProcessStats != nil && c.stats.ProcessStats.ProcessCount != nil {
			return int64(*c.stats.ProcessStats.ProcessCount)
		}
		return 0
	}
	used := c.on(signal, dedicated)
	if signal.resource() == inodes {
		return int64(used.Files)
	}
	return int64(used.Bytes) - request(v1.ResourceEphemeralStorage)
}

func workingSet(m *summary.MemoryStats) int64 {
	if m == nil || m.WorkingSetBytes == nil {
		return 0
	}
	return int64(*m.WorkingSetBytes)
}

// on returns a pod's disk usage on the file system of a signal. Root file systems are with the images, logs and volumes
// on nodefs, unless both are one file system. (The engine keeps logs with the containers, but this follows upstream's
// ranking.)
func (c candidate) on(signal Signal, dedicated bool) disk.Amount {
	switch onNode := signal == NodeFSAvailable || signal == NodeFSInodes; {
	case c.disk == nil:
		return disk.Amount{}
	case !dedicated:
		return c.disk.Ephemeral()
	case onNode:
		return c.disk.OnNode()
	}
	return c.disk.OnImages()
}

// choose returns the pod to evict because of a threshold: the first in rank that is not critical. ok false: none.
func choose(all []candidate, t Threshold, dedicated bool) (candidate, bool) {
	for _, c := range rank(all, t.Signal, dedicated) {
		if !podspec.Critical(c.pod) {
			return c, true
		}
	}
	return candidate{}, false
}

// graceFor returns the grace period for p: short for a hard threshold, else the pod's own, at most the node's maximum
// (evictionMaxPodGracePeriod).
func graceFor(p *v1.Pod, t Threshold, most time.Duration) time.Duration {
	if t.Grace == 0 {
		return grace
	}
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(most, podspec.Seconds(*own))
	}
	return most
}

// Messages in an evicted pod's status and Event, in upstream's words.
const (
	messageLow       = "The node was low on resource: %s. "
	messageThreshold = "Threshold quantity: %s, available: %s. "
	messageUsing     = "%s %s was using %s, request is %s, has larger consumption of %s. "
)

// Annotations of an eviction's Event, which tools read.
const (
	annotationContainers = "offending_containers"
	annotationUsage      = "offending_containers_usage"
	annotationPod        = "offending_pod"
	annotationPodUsage   = "offending_pod_usage"
	annotationStarved    = "starved_resource"
)

// explain returns the message in the pod's status for an eviction because of t, and the annotations of its Event.
func (c candidate) explain(t Threshold, o Observations) (message string, annotations map[string]string) {
	starved := t.Signal.resource()
	message = fmt.Sprintf(messageLow, starved)
	if seen, ok := o[t.Signal]; ok {
		message += fmt.Sprintf(messageThreshold, t.Value.text(seen.Capacity, t.Signal), resource.NewQuantity(seen.Available, t.Signal.format()))
	}
	annotations = map[string]string{annotationStarved: string(starved)}
	if !c.measured(t.Signal) {
		return message, annotations
	}
	if r := c.pod.Spec.Resources; r != nil && starved == v1.ResourceMemory {
		if request, ok := r.Requests[starved]; ok {
			usage := resource.NewQuantity(workingSet(c.stats.Memory), resource.BinarySI).String()
			message += fmt.Sprintf(messageUsing, "Pod", c.pod.Name, usage, request.String(), starved)
			annotations[annotationPod], annotations[annotationPodUsage] = c.pod.Name, usage
		}
	}
	var names, usages []string
	for _, spec := range podspec.Containers(c.pod) {
		usage, measured := c.containerUse(spec.Name, starved)
		if !measured {
			continue
		}
		if request := spec.Resources.Requests[starved]; usage.Cmp(request) > 0 {
			message += fmt.Sprintf(messageUsing, "Container", spec.Name, usage.String(), request.String(), starved)
			names, usages = append(names, spec.Name), append(usages, usage.String())
		}
	}
	annotations[annotationContainers], annotations[annotationUsage] = strings.Join(names, ","), strings.Join(usages, ",")
	return message, annotations
}

// containerUse returns a container's use of a resource that containers can request.
func (c candidate) containerUse(container string, name v1.ResourceName) (*resource.Quantity, bool) {
	switch {
	case name == v1.ResourceMemory && c.stats != nil:
		for i := range c.stats.Containers {
			if of := &c.stats.Containers[i]; of.Name == container && of.Memory != nil && of.Memory.WorkingSetBytes != nil {
				return resource.NewQuantity(workingSet(of.Memory), resource.BinarySI), true
			}
		}
	case name == v1.ResourceEphemeralStorage && c.disk != nil:
		if bytes := (Usage{Taken: *c.disk}).container(container); bytes > 0 {
			return resource.NewQuantity(int64(min(bytes, 1<<63-1)), resource.BinarySI), true
		}
	}
	return nil, false
}
