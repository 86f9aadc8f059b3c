package plan

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// lastRequest is the memory request last reported for a running container; nil if unknown.
func lastRequest(kind podspec.Kind, c *v1.Container, have pod.Container, last *v1.PodStatus) *resource.Quantity {
	old := podspec.FindStatus(last, kind, c.Name)
	if old == nil || old.ContainerID != pod.ContainerIDPrefix+have.ID || old.Resources == nil {
		return nil
	}
	request, ok := old.Resources.Requests[v1.ResourceMemory]
	if !ok {
		return nil
	}
	return &request
}

// resources is a container's resources: as allocated, but for a running container with the engine's actual limits.
func (s *statuser) resources(kind podspec.Kind, c *v1.Container, have past) *v1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	if have.Resources == nil || have.State != pod.Running || kind == podspec.Ephemeral {
		return out
	}
	want := podspec.ResourcesOf(s.pod, c)
	setActual(out.Limits, v1.ResourceCPU, have.Resources.MilliQuota() == want.MilliQuota(), resource.NewMilliQuantity(have.Resources.MilliQuota(), resource.DecimalSI))
	setActual(out.Limits, v1.ResourceMemory, have.Resources.Memory == want.Memory, resource.NewQuantity(have.Resources.Memory, resource.BinarySI))
	setActual(out.Requests, v1.ResourceCPU, have.Resources.Shares == want.Shares, resource.NewMilliQuantity(podspec.MilliShares(have.Resources.Shares), resource.DecimalSI))
	if old := lastRequest(kind, c, have.Container, &s.memory.Last); old != nil && podspec.ResizePolicyOf(c, v1.ResourceMemory) == v1.RestartContainer {
		setActual(out.Requests, v1.ResourceMemory, old.Cmp(*c.Resources.Requests.Memory()) == 0, old)
	}
	return out
}

// podResources returns the pod-level resources in use, and those granted. In use is what was granted (spec.resources, or the sum over the
// containers), or the actual cgroup limits if there is a cgroup (KEP-2837, KEP-5419). Both are nil if nothing is requested.
func (s *statuser) podResources() (*v1.ResourceRequirements, v1.ResourceList) {
	granted, limits := helper.PodRequests(s.pod, helper.PodResourcesOptions{}), helper.PodLimits(s.pod, helper.PodResourcesOptions{})
	if len(granted)+len(limits) == 0 {
		return nil, nil
	}
	out := &v1.ResourceRequirements{Requests: granted.DeepCopy(), Limits: limits}
	if s.pod.Spec.Resources != nil {
		out.Claims = s.pod.Spec.Resources.Claims
	}
	have, want := s.seen.Cgroup, podspec.PodResourcesOf(s.pod)
	if have == nil {
		return out, granted
	}
	setActual(out.Limits, v1.ResourceCPU, have.MilliQuota() == want.MilliQuota(), resource.NewMilliQuantity(have.MilliQuota(), resource.DecimalSI))
	setActual(out.Limits, v1.ResourceMemory, have.Memory == want.Memory, resource.NewQuantity(have.Memory, resource.BinarySI))
	setActual(out.Requests, v1.ResourceCPU, have.Shares == want.Shares, resource.NewMilliQuantity(podspec.MilliShares(have.Shares), resource.DecimalSI))
	return out, granted
}

// setActual replaces an allocated value by the actual one if they differ and the resource was requested.
func setActual(list v1.ResourceList, name v1.ResourceName, same bool, actual *resource.Quantity) {
	if _, asked := list[name]; !asked || same {
		return
	}
	if delete(list, name); actual.Sign() > 0 {
		list[name] = *actual
	}
}

// resizeConditions returns the conditions of a pod while a resize waits for capacity or is in progress (KEP-1287).
func (s *statuser) resizeConditions() []v1.PodCondition {
	if s.memory.Phase != pod.Syncing {
		return nil
	}
	var out []v1.PodCondition
	if why := s.memory.Resize.Pending; why != nil {
		out = append(out, s.condition(v1.PodResizePending, true, why.Reason, why.Message))
	}
	running, message := s.resizeInProgress()
	if !running {
		return out
	}
	c := s.condition(v1.PodResizeInProgress, true, "", message)
	if message != "" {
		c.Reason = v1.PodReasonError
	}
	if s.memory.Resize.Granted > 0 {
		c.ObservedGeneration = s.memory.Resize.Granted
	} else if _, old := podspec.FindCondition(s.memory.Last.Conditions, v1.PodResizeInProgress); old != nil {
		c.ObservedGeneration = old.ObservedGeneration
	}
	return append(out, c)
}

// resizeInProgress reports whether a container does not have its granted resources yet, and what went wrong.
func (s *statuser) resizeInProgress() (yes bool, message string) {
	_, before := podspec.FindCondition(s.memory.Last.Conditions, v1.PodResizeInProgress)
	if have := s.seen.Cgroup; have != nil && *have != podspec.PodResourcesOf(s.pod) {
		yes = true
		if f := s.memory.Retries[UpdateKey("")]; f.Reason == v1.PodReasonError {
			message = f.Message
		}
	}
	for kind, c := range podspec.Containers(s.pod) {
		list := attempts(s.observed, &s.memory.Last, kind, c)
		if len(list) == 0 {
			continue
		}
		restarts := before != nil && list[0].State == pod.Exited && s.memory.Run(list[0].ID).Replace
		need := changeOf(s.pod, kind, c, list[0].Container, &s.memory.Last)
		if need.update || need.restart || restarts {
			yes = true
			if f := s.memory.Retries[UpdateKey(list[0].ID)]; f.Reason == v1.PodReasonError && message == "" {
				message = f.Message
			}
		}
	}
	return yes, message
}
