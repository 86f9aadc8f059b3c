package stats

import (
	"context"
	"net/http"
	"time"

	"github.com/winkube/winkube/pkg/cgroup"
)

// The cAdvisor metric names by which Prometheus' kubernetes-mixin and dashboards identify containers.
var (
	boxCPU           = counterOf("container_cpu_usage_seconds_total", "CPU time used, in core-seconds")
	boxPeriods       = counterOf("container_cpu_cfs_periods_total", "Elapsed periods of CPU quota")
	boxThrottled     = counterOf("container_cpu_cfs_throttled_periods_total", "Periods of CPU quota in which processes were throttled")
	boxThrottledTime = counterOf("container_cpu_cfs_throttled_seconds_total", "Time for which processes were throttled by the CPU quota")
	boxShares        = gaugeOf("container_spec_cpu_shares", "CPU weight, as cgroup v1 has it")
	boxQuota         = gaugeOf("container_spec_cpu_quota", "CPU quota in microseconds of each period")
	boxPeriod        = gaugeOf("container_spec_cpu_period", "Period of CPU quota in microseconds")
	boxMemory        = gaugeOf("container_memory_usage_bytes", "Memory in use, including the page cache")
	boxWorkingSet    = gaugeOf("container_memory_working_set_bytes", "Memory in use that cannot be reclaimed immediately")
	boxRSS           = gaugeOf("container_memory_rss", "Anonymous memory")
	boxCache         = gaugeOf("container_memory_cache", "Page cache")
	boxSwap          = gaugeOf("container_memory_swap", "Memory that is swapped out")
	boxLimit         = gaugeOf("container_spec_memory_limit_bytes", "Memory limit; 0: none")
	boxFailures      = counterOf("container_memory_failures_total", "Page faults")
	boxThreads       = gaugeOf("container_threads", "Running threads")
	boxStart         = gaugeOf("container_start_time_seconds", "Start time, in seconds since 1970")
	boxSeen          = gaugeOf("container_last_seen", "Time of the measurement, in seconds since 1970")
	boxReadBytes     = counterOf("container_fs_reads_bytes_total", "Bytes read from block devices")
	boxWriteBytes    = counterOf("container_fs_writes_bytes_total", "Bytes written to block devices")
	boxOOM           = counterOf("container_oom_events_total", "Processes killed because the container was out of memory")
	boxReads         = counterOf("container_fs_reads_total", "Reads from block devices")
	boxWrites        = counterOf("container_fs_writes_total", "Writes to block devices")

	machineCores  = gaugeOf("machine_cpu_cores", "Processors of the machine")
	machineMemory = gaugeOf("machine_memory_bytes", "Memory of the machine")
)

// netCounters are a pod's counters per interface.
var netCounters = []struct {
	family *family
	of     func(*Interface) uint64
}{
	{counterOf("container_network_receive_bytes_total", "Bytes received"), func(i *Interface) uint64 { return i.RxBytes }},
	{counterOf("container_network_receive_packets_total", "Packets received"), func(i *Interface) uint64 { return i.RxPackets }},
	{counterOf("container_network_receive_errors_total", "Receive errors"), func(i *Interface) uint64 { return i.RxErrors }},
	{counterOf("container_network_receive_packets_dropped_total", "Dropped packets while receiving"), func(i *Interface) uint64 { return i.RxDropped }},
	{counterOf("container_network_transmit_bytes_total", "Bytes sent"), func(i *Interface) uint64 { return i.TxBytes }},
	{counterOf("container_network_transmit_packets_total", "Packets sent"), func(i *Interface) uint64 { return i.TxPackets }},
	{counterOf("container_network_transmit_errors_total", "Transmit errors"), func(i *Interface) uint64 { return i.TxErrors }},
	{counterOf("container_network_transmit_packets_dropped_total", "Dropped packets while transmitting"), func(i *Interface) uint64 { return i.TxDropped }},
}

// CadvisorHandler serves /metrics/cadvisor.
func (c *Collector) CadvisorHandler() http.Handler {
	return servePages(func(r *http.Request) *page { return c.cadvisor(r.Context()) })
}

// boxOf returns the labels of /metrics/cadvisor. For a whole pod, container, image and name are empty; the whole node has only the id "/".
func boxOf(container, id, image, name, namespace, pod string) []label {
	return labelsOf("container", container, "id", id, "image", image, "name", name, "namespace", namespace, "pod", pod)
}

func (c *Collector) cadvisor(ctx context.Context) *page {
	u := c.collect(ctx)
	page := newPage(u.at)
	page.sendTimeless(machineCores, float64(c.cfg.CPUs), nil)
	page.sendTimeless(machineMemory, float64(u.load.Capacity), nil)
	whole := sink{page, u.at, boxOf("", "/", "", "", "", "")}
	whole.sample(&Sample{CPU: u.load.CPU, Memory: u.load.Memory, WorkingSet: u.load.WorkingSet, Resident: known(u.load.Resident)}, u.boot)
	devices := c.meter.devices()
	seen := map[string]bool{}
	for i := range u.pods {
		p := &u.pods[i]
		namespace, name := p.pod.Namespace, p.pod.Name
		if seen[namespace+"/"+name] {
			continue // a pod that terminates next to its successor: the labels cannot distinguish them
		}
		seen[namespace+"/"+name] = true
		s := sink{page, u.at, boxOf("", "pod"+string(p.pod.UID), "", "", namespace, name)}
		if p.whole != nil {
			s.sample(&p.whole.sample, p.pod.CreationTimestamp.Time)
			s.known(boxOOM, c.meter.oomKills(p.containers[0].id))
		}
		s.network(p.net)
		for j := range p.containers {
			used := &p.containers[j]
			detail, path := c.meter.detail(used)
			s := sink{page, u.at, boxOf(used.name, path, used.image, used.id, namespace, name)}
			s.sample(&used.sample, used.started)
			s.detail(detail, devices)
		}
	}
	return page
}

// sink sends the figures of one container, pod or node.
type sink struct {
	page   *page
	at     time.Time
	labels []label
}

func (s sink) send(f *family, value float64) { s.page.send(f, value, s.labels) }

// known sends non-nil values.
func (s sink) known(f *family, value *uint64) {
	if value != nil {
		s.send(f, float64(*value))
	}
}

func (s sink) sample(u *Sample, started time.Time) {
	s.page.send(boxCPU, u.CPU.Seconds(), with(s.labels, "cpu", "total"))
	s.send(boxMemory, float64(u.Memory))
	s.send(boxWorkingSet, float64(u.WorkingSet))
	s.send(boxLimit, float64(u.Limit))
	s.send(boxSeen, float64(s.at.Unix()))
	if started.Unix() > 0 {
		s.send(boxStart, float64(started.UnixNano())/float64(time.Second))
	}
	s.known(boxRSS, u.Resident)
	s.known(boxSwap, u.Swap)
	s.known(boxThreads, u.Tasks)
	s.failures("pgfault", u.Faults)
	s.failures("pgmajfault", u.MajFaults)
}

func (s sink) failures(kind string, n *uint64) {
	if n != nil {
		s.page.send(boxFailures, float64(*n), with(with(s.labels, "failure_type", kind), "scope", "container"))
	}
}

// detail sends a container's less common figures; devices are the names of block devices by their numbers.
func (s sink) detail(d *cgroup.Detail, devices map[string]string) {
	if d == nil {
		return
	}
	s.send(boxCache, float64(d.Cache))
	if d.Shares > 0 {
		s.send(boxShares, float64(d.Shares))
	}
	if d.Quota > 0 {
		s.send(boxQuota, float64(d.Quota))
		s.send(boxPeriod, float64(d.Period))
		s.send(boxPeriods, float64(d.Periods))
		s.send(boxThrottled, float64(d.Throttled))
		s.send(boxThrottledTime, d.ThrottledTime.Seconds())
	}
	s.known(boxOOM, d.OOMKills)
	for _, device := range d.Devices {
		name := device.Number
		if known := devices[name]; known != "" {
			name = "/dev/" + known
		}
		labels := with(s.labels, "device", name)
		s.page.send(boxReadBytes, float64(device.ReadBytes), labels)
		s.page.send(boxWriteBytes, float64(device.WriteBytes), labels)
		s.page.send(boxReads, float64(device.Reads), labels)
		s.page.send(boxWrites, float64(device.Writes), labels)
	}
}

func (s sink) network(all []Interface) {
	for i := range all {
		labels := with(s.labels, "interface", all[i].Name)
		for _, counter := range netCounters {
			s.page.send(counter.family, float64(counter.of(&all[i])), labels)
		}
	}
}
