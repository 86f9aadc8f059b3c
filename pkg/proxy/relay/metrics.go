package relay

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// Metrics are a Relay's counters in addition to those of every back end. They are safe for concurrent use.
type Metrics struct {
	Accepted, Refused prometheus.Counter // TCP connections
	Sessions          prometheus.Counter // UDP sessions
	Led               prometheus.Gauge   // fronts that use the kernel's socket lookup

	noPort, evicted prometheus.Counter
}

func newMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: name, Help: help})
	}
	return &Metrics{
		Accepted: counter("connections_total", "TCP connections accepted."),
		Refused:  counter("connections_refused_total", "TCP connections reset because no endpoint answered."),
		Sessions: counter("sessions_total", "UDP sessions started."),
		Led: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: "fronts_by_lookup",
			Help: "TCP fronts served through the kernel's socket lookup (BPF sk_lookup, Linux). Each other front has its own socket."}),
		noPort:  counter("source_ports_exhausted_total", "Connections to an endpoint that failed because this host had no source port left for it."),
		evicted: limits.Total("affinity_clients", "closed"),
	}
}

// Collectors returns the Relay's own metrics.
func (r *Relay) Collectors() []prometheus.Collector {
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: "open", Help: "Open TCP connections and UDP sessions."},
		func() float64 { return float64(r.open()) })
	m := r.shared.Metrics
	return []prometheus.Collector{open, m.Accepted, m.Refused, m.Sessions, m.noPort, m.Led, (*limitsCollector)(r.shared)}
}

// open returns the number of connections and sessions.
func (r *Relay) open() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.fronts {
		n += f.carrier.Open()
	}
	return n
}

const (
	// warnEvery is the minimum interval of equal warnings about a front.
	warnEvery = 10 * time.Minute
	// nearlyUsed is the percentage of the source ports towards one endpoint from which users are warned.
	nearlyUsed = 80
)

// Exhausted records that the system had no source port left for a connection to an endpoint.
func (f *Front) Exhausted() {
	f.Metrics.noPort.Inc()
	f.warnPorts("this host has no source port left for another connection to an endpoint")
}

// Crowded checks whether the open connections, spread over the endpoints, nearly use up the source ports; ports 0:
// unknown.
func (f *Front) Crowded(open, ports int) {
	if targets := len(f.Chooser.Route().Backends); ports > 0 && targets > 0 && open*100 >= ports*targets*nearlyUsed {
		f.warnPorts(fmt.Sprintf("%d connections are open to %d endpoints, and this host has %d source ports for each", open, targets, ports))
	}
}

func (f *Front) warnPorts(message string) {
	now, last := f.clock.Now().UnixNano(), f.warned.Load()
	if last != 0 && now-last < int64(warnEvery) || !f.warned.CompareAndSwap(last, now) {
		return
	}
	route := f.Chooser.Route()
	klog.InfoS("Source ports are nearly used up", "service", route.Service.ServiceName, "front", route.Front, "detail", message)
	// Asynchronous, because it may wait for the watch's lock, for which no connection should wait.
	go f.warn(route.Service.ServiceName, "SourcePortsNearlyUsedUp", message+"; more endpoints, or a wider range (net.ipv4.ip_local_port_range on Linux), help")
}

// limitsCollector exports the limits and their use.
type limitsCollector Shared

var (
	limitDesc = prometheus.NewDesc("kubeproxy_relay_limit", "Current value of the limit.", []string{"of"}, nil)
	usedDesc  = prometheus.NewDesc("kubeproxy_relay_limit_used", "Use of the limit. For limits per client, front or endpoint: the highest use.", []string{"of"}, nil)
)

// Describe implements prometheus.Collector.
func (c *limitsCollector) Describe(to chan<- *prometheus.Desc) {
	to <- limitDesc
	to <- usedDesc
	for _, one := range c.counters() {
		to <- one.Desc()
	}
}

// Collect implements prometheus.Collector.
func (c *limitsCollector) Collect(to chan<- prometheus.Metric) {
	all, most := c.clients.Used()
	uses := append(c.Ledger.Uses(), limits.Use{Of: "affinity_clients", Used: all, Limit: choose.MaxClients}, limits.Use{Of: "affinity_clients_of_front", Used: most, Limit: choose.MaxFrontClients})
	for _, u := range uses {
		to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(u.Limit), u.Of)
		to <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(u.Used), u.Of)
	}
	for _, one := range c.counters() {
		to <- one
	}
}

func (c *limitsCollector) counters() []prometheus.Counter {
	return append(c.Ledger.Counters(), c.Metrics.evicted)
}
