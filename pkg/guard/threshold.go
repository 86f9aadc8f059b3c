package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Signal names the resource of a threshold, as evictionHard and evictionSoft in KubeletConfiguration do.
type Signal string

// The signals, in the order in which resources are reclaimed: memory first, because the kernel kills processes
// immediately when it runs out.
const (
	MemoryAvailable       Signal = "memory.available"
	AllocatableMemory     Signal = "allocatableMemory.available"
	NodeFSAvailable       Signal = "nodefs.available"
	NodeFSInodes          Signal = "nodefs.inodesFree"
	ImageFSAvailable      Signal = "imagefs.available"
	ImageFSInodes         Signal = "imagefs.inodesFree"
	ContainerFSAvailable  Signal = "containerfs.available"
	ContainerFSInodesFree Signal = "containerfs.inodesFree"
	PIDAvailable          Signal = "pid.available"
)

// Resources of signals that the API does not define.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// signals lists all signals in order.
var signals = []struct {
	Signal
	resource  v1.ResourceName
	condition v1.NodeConditionType
}{
	{MemoryAvailable, v1.ResourceMemory, v1.NodeMemoryPressure},
	{AllocatableMemory, v1.ResourceMemory, v1.NodeMemoryPressure},
	{NodeFSAvailable, v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	{NodeFSInodes, inodes, v1.NodeDiskPressure},
	{ImageFSAvailable, v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	{ImageFSInodes, inodes, v1.NodeDiskPressure},
	{ContainerFSAvailable, v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	{ContainerFSInodesFree, inodes, v1.NodeDiskPressure},
	{PIDAvailable, pids, v1.NodePIDPressure},
}

func (s Signal) index() int {
	for i := range signals {
		if signals[i].Signal == s {
			return i
		}
	}
	return -1
}

func (s Signal) resource() v1.ResourceName { return signals[s.index()].resource }

func (s Signal) condition() v1.NodeConditionType { return signals[s.index()].condition }

// Amount is a quantity or a fraction of the capacity.
type Amount struct {
	Quantity int64
	Format   resource.Format // of Quantity, as the user wrote it
	Part     float32         // 0 to 1; 0: use Quantity
}

func (a Amount) of(capacity int64) int64 {
	if a.Part > 0 {
		return int64(float64(capacity) * float64(a.Part)) // upstream's precision, so that both compute the same number
	}
	return a.Quantity
}

// text formats the amount as upstream does in messages.
func (a Amount) text(capacity int64, s Signal) string {
	format := a.Format
	if a.Part > 0 {
		format = s.format()
	}
	return resource.NewQuantity(a.of(capacity), format).String()
}

// format returns the format for figures of a signal.
func (s Signal) format() resource.Format {
	if r := s.resource(); r == inodes || r == pids {
		return resource.DecimalSI
	}
	return resource.BinarySI
}

// Threshold is the minimum that should stay free.
type Threshold struct {
	Signal  Signal
	Value   Amount
	Grace   time.Duration // how long it must be crossed before the Guard acts (evictionSoftGracePeriod); 0: a hard threshold
	Reclaim Amount        // how much more than Value to reclaim (evictionMinimumReclaim)
}

// Settings are the maps of KubeletConfiguration, by signal.
type Settings struct {
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
	// Allocatable says that the limit for all pods together is the allocatable memory (enforceNodeAllocatable): the
	// hard threshold for memory then applies to it too.
	Allocatable bool
}

// Thresholds parses the settings. Its errors begin with the wrong flag.
func Thresholds(s Settings) ([]Threshold, error) {
	reclaim, err := amounts("eviction-minimum-reclaim", s.MinimumReclaim)
	if err != nil {
		return nil, err
	}
	grace := map[Signal]time.Duration{}
	for name, value := range s.SoftGrace {
		d, err := time.ParseDuration(value)
		if Signal(name).index() < 0 || err != nil || d < 0 {
			return nil, fmt.Errorf("--eviction-soft-grace-period: %s=%s: want a signal and a duration such as memory.available=90s", name, value)
		}
		grace[Signal(name)] = d
	}
	hard, err := amounts("eviction-hard", s.Hard)
	if err != nil {
		return nil, err
	}
	soft, err := amounts("eviction-soft", s.Soft)
	if err != nil {
		return nil, err
	}
	var out []Threshold
	for i := range signals {
		name := signals[i].Signal
		if value, ok := hard[name]; ok && value.set() {
			out = append(out, Threshold{Signal: name, Value: value, Reclaim: reclaim[name]})
			if name == MemoryAvailable && s.Allocatable {
				out = append(out, Threshold{Signal: AllocatableMemory, Value: value, Reclaim: reclaim[name]})
			}
		}
		if value, ok := soft[name]; ok && value.set() {
			if _, ok := grace[name]; !ok {
				return nil, fmt.Errorf("--eviction-soft: %s=%s: want --eviction-soft-grace-period for it", name, s.Soft[string(name)])
			}
			out = append(out, Threshold{Signal: name, Value: value, Grace: grace[name], Reclaim: reclaim[name]})
		}
	}
	return out, nil
}

// set is false for 0% and 100%, which disable a threshold.
func (a Amount) set() bool { return a.Quantity > 0 || a.Part > 0 && a.Part < 1 }

func amounts(flag string, values map[string]string) (map[Signal]Amount, error) {
	out := map[Signal]Amount{}
	for name, value := range values {
		if Signal(name).index() < 0 {
			return nil, fmt.Errorf("--%s: %s=%s: want a signal, one of %s", flag, name, value, signalNames())
		}
		a, err := parseAmount(value)
		if err != nil {
			return nil, fmt.Errorf("--%s: %s=%s: %w", flag, name, value, err)
		}
		out[Signal(name)] = a
	}
	return out, nil
}

func signalNames() string {
	var names []string
	for i := range signals {
		names = append(names, string(signals[i].Signal))
	}
	return strings.Join(names, ", ")
}

func parseAmount(value string) (Amount, error) {
	if percent, ok := strings.CutSuffix(value, "%"); ok {
		p, err := strconv.ParseFloat(percent, 32)
		if err != nil || !(p >= 0 && p <= 100) { // NaN fails both comparisons
			return Amount{}, fmt.Errorf("want a percentage from 0%% to 100%%")
		}
		return Amount{Part: float32(p) / 100}, nil
	}
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() <= 0 {
		return Amount{}, fmt.Errorf("want a quantity above 0 such as 100Mi, or a percentage such as 10%%")
	}
	return Amount{Quantity: q.Value(), Format: q.Format}, nil
}

// forEngine drops the thresholds of containerfs: Docker keeps containers with its images, so those of imagefs, or of
// nodefs if imagefs is not separate, have the same effect. Upstream sets the former to the latter.
func forEngine(all []Threshold) (kept []Threshold, ignored []Signal) {
	for _, t := range all {
		if t.Signal == ContainerFSAvailable || t.Signal == ContainerFSInodesFree {
			ignored = append(ignored, t.Signal)
		} else {
			kept = append(kept, t)
		}
	}
	return kept, slices.Compact(ignored)
}

// Observation is the free and total number of bytes, inodes or processes.
type Observation struct{ Available, Capacity int64 }

// Observations maps signals to observations; a signal that could not be measured is missing.
type Observations map[Signal]Observation

// Observe extracts the figures of the signals from the node's. On Windows memory is what can still be committed.
func Observe(n *summary.NodeStats) Observations {
	out := Observations{}
	if m := n.Memory; m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil {
		out[MemoryAvailable] = Observation{int64(*m.AvailableBytes), int64(*m.AvailableBytes + *m.WorkingSetBytes)}
	}
	for _, c := range n.SystemContainers {
		m := c.Memory
		switch {
		case m == nil || m.AvailableBytes == nil:
		case c.Name == summary.SystemContainerPods && m.WorkingSetBytes != nil:
			out[AllocatableMemory] = Observation{int64(*m.AvailableBytes), int64(*m.AvailableBytes + *m.WorkingSetBytes)}
		case c.Name == summary.SystemContainerWindowsGlobalCommitMemory && m.UsageBytes != nil:
			out[MemoryAvailable] = Observation{int64(*m.AvailableBytes), int64(*m.AvailableBytes + *m.UsageBytes)}
		}
	}
	out.disk(n.Fs, NodeFSAvailable, NodeFSInodes)
	if r := n.Runtime; r != nil {
		out.disk(r.ImageFs, ImageFSAvailable, ImageFSInodes)
		out.disk(r.ContainerFs, ContainerFSAvailable, ContainerFSInodesFree)
	}
	if r := n.Rlimit; r != nil && r.MaxPID != nil && r.NumOfRunningProcesses != nil {
		out[PIDAvailable] = Observation{*r.MaxPID - *r.NumOfRunningProcesses, *r.MaxPID}
	}
	return out
}

func (o Observations) disk(fs *summary.FsStats, bytes, files Signal) {
	if fs == nil {
		return
	}
	if fs.AvailableBytes != nil && fs.CapacityBytes != nil {
		o[bytes] = Observation{int64(*fs.AvailableBytes), int64(*fs.CapacityBytes)}
	}
	if fs.InodesFree != nil && fs.Inodes != nil {
		o[files] = Observation{int64(*fs.InodesFree), int64(*fs.Inodes)}
	}
}
