package stats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/host"
)

// summarize brings the figures into upstream's shape; d nil: without disks and networks.
func (c *Collector) summarize(u usage, d *disks) *summary.Summary {
	at := metav1.NewTime(u.at)
	load := u.load
	out := &summary.Summary{Pods: []summary.PodStats{}, Node: summary.NodeStats{NodeName: c.cfg.NodeName, StartTime: metav1.NewTime(u.boot)}}
	if load.Capacity > 0 {
		out.Node.CPU = &summary.CPUStats{Time: at, UsageNanoCores: u.cores, UsageCoreNanoSeconds: count(load.CPU)}
		out.Node.Memory = &summary.MemoryStats{
			Time: at, AvailableBytes: new(less(load.Capacity, load.WorkingSet)), UsageBytes: &load.Memory, WorkingSetBytes: &load.WorkingSet,
			RSSBytes: known(load.Resident), PageFaults: known(load.Faults), MajorPageFaults: known(load.MajorFaults),
		}
		if c.cfg.OS != "windows" {
			out.Node.Swap = &summary.SwapStats{Time: at, SwapAvailableBytes: &load.SwapFree, SwapUsageBytes: &load.Swap}
		}
	}
	whole := Sample{Pressure: u.system.pressure}
	if out.Node.CPU != nil {
		out.Node.CPU.PSI, out.Node.Memory.PSI, out.Node.IO = pressure(&whole, "cpu"), pressure(&whole, "memory"), diskIO(at, &whole)
	}
	for i := range u.system.containers {
		stats := containerStats(at, &u.system.containers[i])
		stats.StartTime = metav1.NewTime(u.boot)
		out.Node.SystemContainers = append(out.Node.SystemContainers, stats)
	}
	if load.CommitLimit > 0 {
		out.Node.SystemContainers = append(out.Node.SystemContainers, summary.ContainerStats{
			Name: summary.SystemContainerWindowsGlobalCommitMemory, StartTime: metav1.NewTime(u.boot),
			Memory: &summary.MemoryStats{Time: at, UsageBytes: &load.Commit, AvailableBytes: new(less(load.CommitLimit, load.Commit))},
		})
	}
	if d != nil {
		out.Node.Network = networkStats(at, u.net)
		out.Node.Fs = figure(d.node)
		if d.images != nil {
			out.Node.Runtime = &summary.RuntimeStats{ImageFs: figure(d.images), ContainerFs: figure(d.images)}
		}
		if load.MaxTasks > 0 {
			out.Node.Rlimit = &summary.RlimitStats{Time: at, MaxPID: &load.MaxTasks, NumOfRunningProcesses: &load.Tasks}
		}
	}
	for i := range u.pods {
		out.Pods = append(out.Pods, c.podStats(at, &u.pods[i], d))
	}
	return out
}

// on is a as part of a file system.
func on(a *disk.Amount, at time.Time, of *disk.Figure) *summary.FsStats {
	out := filesystem(at, &of.Disk)
	out.UsedBytes, out.InodesUsed = nil, nil // those of the whole file system are not the container's
	if a != nil {
		out.UsedBytes, out.InodesUsed = &a.Bytes, &a.Files
	}
	return out
}

// figure is a file system of which nil is nothing known.
func figure(f *disk.Figure) *summary.FsStats {
	if f == nil {
		return nil
	}
	return filesystem(f.At, &f.Disk)
}

// podStats is what a pod uses by its own cgroup, else the sum of its containers, in which the infra container is not counted.
func (c *Collector) podStats(at metav1.Time, p *podUsage, d *disks) summary.PodStats {
	out := summary.PodStats{
		PodRef:     summary.PodReference{Name: p.pod.Name, Namespace: p.pod.Namespace, UID: string(p.pod.UID)},
		StartTime:  p.pod.CreationTimestamp,
		Containers: []summary.ContainerStats{},
	}
	if p.pod.Status.StartTime != nil {
		out.StartTime = *p.pod.Status.StartTime
	}
	for i := range p.containers {
		stats := containerStats(at, &p.containers[i])
		if d != nil && d.images != nil {
			w := d.pods[p.pod.UID].Containers[p.containers[i].id]
			stats.Rootfs, stats.Logs = on(w.Layer, d.at, d.images), on(w.Log, d.at, d.images)
		}
		out.Containers = append(out.Containers, stats)
	}
	sum := sumOf(p.containers)
	if p.whole != nil {
		sum = *p.whole
	}
	out.CPU, out.Memory, out.Swap, out.IO = cpu(at, &sum.sample, sum.cores), memory(at, &sum.sample), swap(at, &sum.sample), diskIO(at, &sum.sample)
	if sum.sample.Tasks != nil {
		out.ProcessStats = &summary.ProcessStats{ProcessCount: sum.sample.Tasks}
	}
	if d != nil {
		out.Network = networkStats(at, p.net)
		c.volumes(&out, p, d)
	}
	return out
}

// volumes fills in the pod's volumes, and what counts against its ephemeral storage: the figures that its limits are held to.
func (c *Collector) volumes(out *summary.PodStats, p *podUsage, d *disks) {
	of := d.pods[p.pod.UID]
	for i := range of.Volumes {
		v := &of.Volumes[i]
		at := v.At
		if at.IsZero() { // only a part has been counted yet
			at = d.at
		}
		stats := summary.VolumeStats{FsStats: *filesystem(at, &v.Disk), Name: v.Volume}
		if v.Claim != "" {
			stats.PVCRef = &summary.PVCReference{Name: v.Claim, Namespace: p.pod.Namespace}
		}
		if v.Health != nil && c.cfg.VolumeHealth {
			stats.VolumeHealthStats = &summary.VolumeHealthStats{Abnormal: v.Health.Abnormal}
		}
		if v.Own && v.At.IsZero() {
			continue // nothing is known of a file system that hangs
		}
		out.VolumeStats = append(out.VolumeStats, stats)
	}
	if d.node != nil {
		used := of.Ephemeral()
		out.EphemeralStorage = filesystem(d.at, &d.node.Disk)
		out.EphemeralStorage.UsedBytes, out.EphemeralStorage.InodesUsed = &used.Bytes, &used.Files
	}
}

func containerStats(at metav1.Time, c *containerUsage) summary.ContainerStats {
	return summary.ContainerStats{
		Name: c.name, StartTime: metav1.NewTime(c.started), CPU: cpu(at, &c.sample, c.cores), Memory: memory(at, &c.sample),
		Swap: swap(at, &c.sample), IO: diskIO(at, &c.sample),
	}
}

func cpu(at metav1.Time, s *Sample, cores *uint64) *summary.CPUStats {
	return &summary.CPUStats{Time: at, UsageNanoCores: cores, UsageCoreNanoSeconds: count(s.CPU), PSI: pressure(s, "cpu")}
}

func memory(at metav1.Time, s *Sample) *summary.MemoryStats {
	m := &summary.MemoryStats{
		Time: at, UsageBytes: &s.Memory, WorkingSetBytes: &s.WorkingSet, RSSBytes: s.Resident, PageFaults: s.Faults, MajorPageFaults: s.MajFaults,
		PSI: pressure(s, "memory"),
	}
	if s.Limit > 0 {
		m.AvailableBytes = new(less(s.Limit, s.WorkingSet))
	}
	return m
}

func swap(at metav1.Time, s *Sample) *summary.SwapStats {
	if s.Swap == nil {
		return nil
	}
	out := &summary.SwapStats{Time: at, SwapUsageBytes: s.Swap}
	if s.SwapLimit != nil {
		out.SwapAvailableBytes = new(less(*s.SwapLimit, *s.Swap))
	}
	return out
}

func diskIO(at metav1.Time, s *Sample) *summary.IOStats {
	psi := pressure(s, "io")
	if psi == nil {
		return nil
	}
	return &summary.IOStats{Time: at, PSI: psi}
}

func pressure(s *Sample, resource string) *summary.PSIStats {
	p, ok := s.Pressure[resource]
	if !ok {
		return nil
	}
	data := func(s cgroup.Stall) summary.PSIData {
		return summary.PSIData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &summary.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

// sumOf adds up containers: there is a limit where all have one, and a rate where all have one. Pressure cannot be added up.
func sumOf(all []containerUsage) (sum containerUsage) {
	var cores uint64
	limited, rated := true, true
	for i := range all {
		s, t := &all[i].sample, &sum.sample
		t.CPU += s.CPU
		t.Memory += s.Memory
		t.WorkingSet += s.WorkingSet
		t.Limit += s.Limit
		limited = limited && s.Limit > 0
		if all[i].cores == nil {
			rated = false
		} else {
			cores += *all[i].cores
		}
		for _, pair := range [][2]**uint64{
			{&t.Resident, &s.Resident}, {&t.Faults, &s.Faults}, {&t.MajFaults, &s.MajFaults}, {&t.Swap, &s.Swap}, {&t.Tasks, &s.Tasks},
		} {
			switch total, n := *pair[0], *pair[1]; {
			case n == nil:
			case total == nil:
				*pair[0] = new(*n)
			default:
				*pair[0] = new(*total + *n)
			}
		}
	}
	if !limited {
		sum.sample.Limit = 0
	}
	if rated {
		sum.cores = &cores
	}
	return sum
}

func networkStats(at metav1.Time, all []Interface) *summary.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	out := &summary.NetworkStats{Time: at}
	for i := range all {
		n := &all[i]
		out.Interfaces = append(out.Interfaces, summary.InterfaceStats{
			Name: n.Name, RxBytes: &n.RxBytes, RxErrors: &n.RxErrors, TxBytes: &n.TxBytes, TxErrors: &n.TxErrors,
		})
	}
	out.InterfaceStats = out.Interfaces[0]
	return out
}

func filesystem(at time.Time, d *host.Disk) *summary.FsStats {
	if d == nil {
		return nil
	}
	disk := *d
	out := &summary.FsStats{Time: metav1.NewTime(at), AvailableBytes: &disk.Available, CapacityBytes: &disk.Capacity, UsedBytes: &disk.Used}
	if disk.Inodes > 0 {
		out.InodesFree, out.Inodes, out.InodesUsed = &disk.InodesFree, &disk.Inodes, &disk.InodesUsed
	}
	return out
}

func count(d time.Duration) *uint64 { return new(uint64(max(d, 0))) }

// known leaves out what the system does not report.
func known(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
