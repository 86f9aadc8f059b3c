package podspec

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

// ResizePolicyOf is the container's restart policy for changes to a resource (spec.containers[].resizePolicy).
func ResizePolicyOf(c *v1.Container, name v1.ResourceName) v1.ResourceResizeRestartPolicy {
	for _, p := range c.ResizePolicy {
		if p.ResourceName == name {
			return p.RestartPolicy
		}
	}
	return v1.NotRequired
}

// Constants of upstream's CPU policy, in the kernel's units.
const (
	cpuPeriod = 100_000 // microseconds, the kernel's default
	minQuota  = 1_000   // microseconds, the kernel's minimum
	MinShares = 2
	maxShares = 262_144
)

// Resources are the limits and weights of a container on Linux, in the kernel's units.
type Resources struct {
	Shares int64 // CPU weight as in cgroup v1: 2 to 262144
	Quota  int64 // microseconds of CPU in each Period; 0: no limit
	Period int64 // microseconds; 0 without a Quota
	Memory int64 // bytes, for memory and also for memory plus swap; 0: no limit
}

// String formats r for ParseResources.
func (r Resources) String() string {
	return fmt.Sprintf("%d/%d/%d/%d", r.Shares, r.Quota, r.Period, r.Memory)
}

// ParseResources parses String's format; other text gives the zero value.
func ParseResources(text string) Resources {
	var r Resources
	if n, err := fmt.Sscanf(text, "%d/%d/%d/%d", &r.Shares, &r.Quota, &r.Period, &r.Memory); err != nil || n != 4 {
		return Resources{}
	}
	return r
}

// ResourcesOf is the limits and weights of pod's container. As in upstream, a container without limits has the pod's (spec.resources), and
// without a CPU request its limit determines its weight. Creating, updating and comparing containers all use it.
func ResourcesOf(pod *v1.Pod, container *v1.Container) Resources {
	request, limit := container.Resources.Requests.Cpu(), container.Resources.Limits.Cpu()
	memory := container.Resources.Limits.Memory()
	if all := pod.Spec.Resources; all != nil {
		if limit.IsZero() {
			limit = all.Limits.Cpu()
		}
		if memory.IsZero() {
			memory = all.Limits.Memory()
		}
	}
	weight := request.MilliValue()
	if _, set := container.Resources.Requests[v1.ResourceCPU]; !set {
		weight = limit.MilliValue()
	}
	r := Resources{Shares: SharesOf(weight), Memory: memory.Value()}
	r.Quota, r.Period = QuotaOf(limit.MilliValue())
	return r
}

// PodResourcesOf is the limits and weights of pod as a whole: what the scheduler counts, including sidecars, init containers and overhead,
// or what the pod sets itself (spec.resources, KEP-2837). There is a limit if the pod has one or every container has one.
func PodResourcesOf(pod *v1.Pod) Resources {
	requests := helper.PodRequests(pod, helper.PodResourcesOptions{})
	r := Resources{Shares: SharesOf(requests.Cpu().MilliValue())}
	if QOSOf(pod) == v1.PodQOSBestEffort {
		return Resources{Shares: MinShares}
	}
	bounded := map[v1.ResourceName]bool{v1.ResourceCPU: true, v1.ResourceMemory: true}
	limits := helper.PodLimits(pod, helper.PodResourcesOptions{ContainerFn: func(list v1.ResourceList, _ helper.ContainerType) {
		for name := range bounded {
			bounded[name] = bounded[name] && !list.Name(name, resource.DecimalSI).IsZero()
		}
	}})
	for name := range bounded {
		own := pod.Spec.Resources != nil && !pod.Spec.Resources.Limits.Name(name, resource.DecimalSI).IsZero()
		bounded[name] = bounded[name] || own
	}
	if bounded[v1.ResourceCPU] {
		r.Quota, r.Period = QuotaOf(limits.Cpu().MilliValue())
	}
	if bounded[v1.ResourceMemory] {
		r.Memory = limits.Memory().Value()
	}
	return r
}

// AtLeast returns the larger of r and other for each figure. No limit is larger than any limit.
func (r Resources) AtLeast(other Resources) Resources {
	out := r
	out.Shares = max(r.Shares, other.Shares)
	if r.Quota > 0 && (other.Quota == 0 || other.MilliQuota() > r.MilliQuota()) {
		out.Quota, out.Period = other.Quota, other.Period
	}
	if r.Memory > 0 && (other.Memory == 0 || other.Memory > r.Memory) {
		out.Memory = other.Memory
	}
	return out
}

// SharesOf is the CPU weight for milli thousandths of a CPU.
func SharesOf(milli int64) int64 { return min(max(milli*1024/1000, MinShares), maxShares) }

// QuotaOf is the CPU limit for milli thousandths of a CPU; zeros mean no limit.
func QuotaOf(milli int64) (quota, period int64) {
	if milli <= 0 {
		return 0, 0
	}
	return max(milli*cpuPeriod/1000, minQuota), cpuPeriod
}

// MilliShares is the inverse of SharesOf.
func MilliShares(shares int64) int64 { return (shares*1000 + 1023) / 1024 }

// MilliQuota is r's CPU limit in thousandths of a CPU; 0: no limit.
func (r Resources) MilliQuota() int64 {
	if r.Quota <= 0 || r.Period <= 0 {
		return 0
	}
	return r.Quota * 1000 / r.Period
}

// SameCPU compares the figures that the CPU's resize policy covers.
func (r Resources) SameCPU(o Resources) bool {
	return r.Shares == o.Shares && r.MilliQuota() == o.MilliQuota()
}

// SameMemory compares the figures that the memory's resize policy covers.
func (r Resources) SameMemory(o Resources) bool { return r.Memory == o.Memory }
