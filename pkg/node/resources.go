package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// capacity is what the machine has, plus resources that others (device plugins, an administrator) added to the status.
func capacity(in Inputs) v1.ResourceList {
	out := v1.ResourceList{}
	for name, q := range in.Known.Capacity {
		if !isHugePages(name) {
			out[name] = q.DeepCopy()
		}
	}
	pods := in.Config.PodLimit(in.Facts.CPUs)
	out[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(in.Facts.CPUs)*1000, resource.DecimalSI)
	out[v1.ResourceMemory] = *resource.NewQuantity(int64(in.Facts.Memory), resource.BinarySI)
	out[v1.ResourcePods] = *resource.NewQuantity(int64(pods), resource.DecimalSI)
	if in.Disk.Capacity > 0 {
		out[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(in.Disk.Capacity), resource.BinarySI)
	}
	for page, bytes := range in.Facts.HugePages {
		size := resource.NewQuantity(int64(page), resource.BinarySI)
		out[v1.ResourceName(v1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(int64(bytes), resource.BinarySI)
	}
	return out
}

// allocatable is capacity minus the reservations, the memory and disk that eviction keeps free and, for memory, huge pages.
func allocatable(in Inputs, capacity v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	eviction := evictionReserve(in, capacity)
	for name, q := range capacity {
		q = q.DeepCopy()
		for _, reserved := range []v1.ResourceList{in.Config.SystemReserved, in.Config.KubeReserved, eviction} {
			if r, ok := reserved[name]; ok {
				q.Sub(r)
			}
		}
		out[name] = q
	}
	memory := out[v1.ResourceMemory]
	for name, q := range capacity {
		if isHugePages(name) {
			memory.Sub(q)
		}
	}
	out[v1.ResourceMemory] = memory
	for name, q := range out {
		if q.Sign() < 0 {
			q.Set(0)
			out[name] = q
		}
	}
	return out
}

func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// DefaultEvictionHard are upstream's hard eviction thresholds, by signal.
func DefaultEvictionHard(os string) map[string]string {
	if os == "windows" { // the system needs more free memory, and its file systems have no inodes
		return map[string]string{"memory.available": "500Mi", "nodefs.available": "10%", "imagefs.available": "15%"}
	}
	return map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%"}
}

func evictionReserve(in Inputs, capacity v1.ResourceList) v1.ResourceList {
	thresholds := in.Config.EvictionHard
	if thresholds == nil {
		thresholds = DefaultEvictionHard(in.Facts.OS)
	}
	out := v1.ResourceList{}
	for signal, name := range map[string]v1.ResourceName{"memory.available": v1.ResourceMemory, "nodefs.available": v1.ResourceEphemeralStorage} {
		if value, ok := thresholds[signal]; ok {
			total := capacity[name]
			if q, err := threshold(value, total.Value()); err == nil { // New has validated them
				out[name] = q
			}
		}
	}
	return out
}

// threshold parses a quantity, or a percentage of total.
func threshold(value string, total int64) (resource.Quantity, error) {
	percent, ok := strings.CutSuffix(value, "%")
	if !ok {
		return resource.ParseQuantity(value)
	}
	// Upstream's precision, so that both agents report the same number.
	p, err := strconv.ParseFloat(percent, 32)
	if err != nil || !(p >= 0 && p <= 100) { // also excludes NaN
		return resource.Quantity{}, fmt.Errorf("must be a percentage between 0%% and 100%%")
	}
	return *resource.NewQuantity(int64(float64(total)*float64(float32(p)/100)), resource.BinarySI), nil
}

// PodLimit is the maximum number of pods on a machine with the given number of CPUs.
func (c Config) PodLimit(cpus int) int {
	if c.PodsPerCore > 0 {
		return min(c.MaxPods, c.PodsPerCore*cpus)
	}
	return c.MaxPods
}

// Allocatable is what pods may use of this machine, calculated as for the Node's status, for callers that need it before the Node is known.
func (m *Manager) Allocatable(ctx context.Context) (v1.ResourceList, error) {
	in := Inputs{Config: m.config}
	var err error
	if in.Facts, err = m.parts.Host.Facts(); err != nil {
		return nil, err
	}
	if in.Disk, err = m.parts.Host.NodeDisk(ctx); err != nil {
		return nil, err
	}
	return allocatable(in, capacity(in)), nil
}
