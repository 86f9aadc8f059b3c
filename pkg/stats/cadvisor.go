package stats

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/winkube/winkube/pkg/cgroup"
)

// Labels of /metrics/cadvisor. A pod as a whole has no container, image and name; the node as a whole has the id "/" alone.
var (
	boxLabels = []string{"container", "id", "image", "name", "namespace", "pod"}
	netLabels = append(append([]string{}, boxLabels...), "interface")
)

func boxDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(append([]string{}, boxLabels...), more...), nil)
}

func netDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, netLabels, nil)
}

// The names of cAdvisor's metrics by which Prometheus' kubernetes-mixin and dashboards know containers.
var (
	boxCPU           = boxDesc("container_cpu_usage_seconds_total", "CPU time used, in core-seconds", "cpu")
	boxPeriods       = boxDesc("container_cpu_cfs_periods_total", "Periods of CPU quota that have passed")
	boxThrottled     = boxDesc("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up")
	boxThrottledTime = boxDesc("container_cpu_cfs_throttled_seconds_total", "Time for which processes waited for the next period of CPU quota")
	boxShares        = boxDesc("container_spec_cpu_shares", "CPU weight, as cgroup v1 has it")
	boxQuota         = boxDesc("container_spec_cpu_quota", "CPU quota in microseconds of each period")
	boxPeriod        = boxDesc("container_spec_cpu_period", "Period of CPU quota in microseconds")
	boxMemory        = boxDesc("container_memory_usage_bytes", "Memory in use, files' pages with it")
	boxWorkingSet    = boxDesc("container_memory_working_set_bytes", "Memory in use that cannot be given back at once")
	boxRSS           = boxDesc("container_memory_rss", "Memory of processes' own")
	boxCache         = boxDesc("container_memory_cache", "Memory of files' pages")
	boxSwap          = boxDesc("container_memory_swap", "Memory that is swapped out")
	boxLimit         = boxDesc("container_spec_memory_limit_bytes", "Memory limit; 0: none")
	boxFailures      = boxDesc("container_memory_failures_total", "Page faults", "failure_type", "scope")
	boxThreads       = boxDesc("container_threads", "Threads that run")
	boxStart         = boxDesc("container_start_time_seconds", "When it started, in seconds since 1970")
	boxSeen          = boxDesc("container_last_seen", "When it was measured, in seconds since 1970")
	boxReadBytes     = boxDesc("container_fs_reads_bytes_total", "Bytes read from block devices", "device")
	boxWriteBytes    = boxDesc("container_fs_writes_bytes_total", "Bytes written to block devices", "device")
	boxOOM           = boxDesc("container_oom_events_total", "Processes that were ended because the container had no memory left")
	boxReads         = boxDesc("container_fs_reads_total", "Reads from block devices", "device")
	boxWrites        = boxDesc("container_fs_writes_total", "Writes to block devices", "device")

	machineCores  = prometheus.NewDesc("machine_cpu_cores", "Processors of the machine", nil, nil)
	machineMemory = prometheus.NewDesc("machine_memory_bytes", "Memory of the machine", nil, nil)
)

// netCounters are a pod's, by interface.
var netCounters = []struct {
	desc *prometheus.Desc
	of   func(*Interface) uint64
}{
	{netDesc("container_network_receive_bytes_total", "Bytes received"), func(i *Interface) uint64 { return i.RxBytes }},
	{netDesc("container_network_receive_packets_total", "Packets received"), func(i *Interface) uint64 { return i.RxPackets }},
	{netDesc("container_network_receive_errors_total", "Errors on receiving"), func(i *Interface) uint64 { return i.RxErrors }},
	{netDesc("container_network_receive_packets_dropped_total", "Received packets that were dropped"), func(i *Interface) uint64 { return i.RxDropped }},
	{netDesc("container_network_transmit_bytes_total", "Bytes sent"), func(i *Interface) uint64 { return i.TxBytes }},
	{netDesc("container_network_transmit_packets_total", "Packets sent"), func(i *Interface) uint64 { return i.TxPackets }},
	{netDesc("container_network_transmit_errors_total", "Errors on sending"), func(i *Interface) uint64 { return i.TxErrors }},
	{netDesc("container_network_transmit_packets_dropped_total", "Packets to be sent that were dropped"), func(i *Interface) uint64 { return i.TxDropped }},
}

// CadvisorHandler serves /metrics/cadvisor.
func (c *Collector) CadvisorHandler() http.Handler { return serveMetrics(c.sendCadvisor) }

func (c *Collector) sendCadvisor(ctx context.Context, out chan<- prometheus.Metric) {
	u := c.collect(ctx)
	out <- prometheus.MustNewConstMetric(machineCores, prometheus.GaugeValue, float64(c.cfg.CPUs))
	out <- prometheus.MustNewConstMetric(machineMemory, prometheus.GaugeValue, float64(u.load.Capacity))
	whole := sink{out, u.at, []string{"", "/", "", "", "", ""}}
	whole.sample(&Sample{CPU: u.load.CPU, Memory: u.load.Memory, WorkingSet: u.load.WorkingSet, Resident: known(u.load.Resident)}, u.boot)
	devices := c.meter.devices()
	seen := map[string]bool{}
	for i := range u.pods {
		p := &u.pods[i]
		namespace, name := p.pod.Namespace, p.pod.Name
		if seen[namespace+"/"+name] {
			continue // a pod that ends beside its successor: the labels do not tell them apart
		}
		seen[namespace+"/"+name] = true
		var place cgroup.Place
		for j := range p.containers {
			used := &p.containers[j]
			detail, at := c.meter.detail(used.pid)
			place = at
			s := sink{out, u.at, []string{used.name, at.Path(), used.image, used.id, namespace, name}}
			s.sample(&used.sample, used.started)
			s.detail(detail, devices)
		}
		s := sink{out, u.at, []string{"", "pod" + string(p.pod.UID), "", "", namespace, name}}
		if p.whole != nil {
			s.sample(&p.whole.sample, p.pod.CreationTimestamp.Time)
			s.oom(c.meter.oomKills(place, p.pod.UID))
		}
		s.network(p.net)
	}
}

// sink sends the figures of one container, pod or node.
type sink struct {
	out    chan<- prometheus.Metric
	at     time.Time
	labels []string
}

func (s sink) send(kind prometheus.ValueType, desc *prometheus.Desc, value float64, more ...string) {
	labels := append(append([]string{}, s.labels...), more...)
	s.out <- prometheus.NewMetricWithTimestamp(s.at, prometheus.MustNewConstMetric(desc, kind, value, labels...))
}

func (s sink) sample(u *Sample, started time.Time) {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	s.send(counter, boxCPU, u.CPU.Seconds(), "total")
	s.send(gauge, boxMemory, float64(u.Memory))
	s.send(gauge, boxWorkingSet, float64(u.WorkingSet))
	s.send(gauge, boxLimit, float64(u.Limit))
	s.send(gauge, boxSeen, float64(s.at.Unix()))
	if started.Unix() > 0 {
		s.send(gauge, boxStart, float64(started.UnixNano())/float64(time.Second))
	}
	for desc, value := range map[*prometheus.Desc]*uint64{boxRSS: u.Resident, boxSwap: u.Swap, boxThreads: u.Tasks} {
		if value != nil {
			s.send(gauge, desc, float64(*value))
		}
	}
	for kind, value := range map[string]*uint64{"pgfault": u.Faults, "pgmajfault": u.MajFaults} {
		if value != nil {
			s.send(counter, boxFailures, float64(*value), kind, "container")
		}
	}
}

// detail sends what of a container is asked for less often; devices are the names of block devices by their numbers.
func (s sink) detail(d *cgroup.Detail, devices map[string]string) {
	if d == nil {
		return
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	s.send(gauge, boxCache, float64(d.Cache))
	if d.Shares > 0 {
		s.send(gauge, boxShares, float64(d.Shares))
	}
	if d.Quota > 0 {
		s.send(gauge, boxQuota, float64(d.Quota))
		s.send(gauge, boxPeriod, float64(d.Period))
		s.send(counter, boxPeriods, float64(d.Periods))
		s.send(counter, boxThrottled, float64(d.Throttled))
		s.send(counter, boxThrottledTime, d.ThrottledTime.Seconds())
	}
	s.oom(d.OOMKills)
	for _, device := range d.Devices {
		name := device.Number
		if known := devices[name]; known != "" {
			name = "/dev/" + known
		}
		s.send(counter, boxReadBytes, float64(device.ReadBytes), name)
		s.send(counter, boxWriteBytes, float64(device.WriteBytes), name)
		s.send(counter, boxReads, float64(device.Reads), name)
		s.send(counter, boxWrites, float64(device.Writes), name)
	}
}

func (s sink) oom(kills *uint64) {
	if kills != nil {
		s.send(prometheus.CounterValue, boxOOM, float64(*kills))
	}
}

func (s sink) network(all []Interface) {
	for i := range all {
		for _, counter := range netCounters {
			s.send(prometheus.CounterValue, counter.desc, float64(counter.of(&all[i])), all[i].Name)
		}
	}
}
