package relay

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// counts are what a Relay says of itself beside what every back end says. It is safe for concurrent use.
type counts struct {
	accepted, refused, sessions, noPort prometheus.Counter
	led                                 prometheus.Gauge
}

func newCounts() *counts {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: name, Help: help})
	}
	return &counts{
		accepted: counter("connections_total", "TCP connections accepted."),
		refused:  counter("connections_refused_total", "TCP connections reset because no endpoint answered."),
		sessions: counter("sessions_total", "UDP sessions begun."),
		noPort:   counter("source_ports_exhausted_total", "Connections to an endpoint that failed because this host had no source port left for it."),
		led: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: "fronts_by_lookup",
			Help: "TCP fronts to which the kernel's socket lookup leads (BPF sk_lookup, Linux). Each of the others has a socket."}),
	}
}

// Collectors are the Relay's own metrics.
func (r *Relay) Collectors() []prometheus.Collector {
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: "open", Help: "Open TCP connections and UDP sessions."},
		func() float64 { return float64(r.open()) })
	return []prometheus.Collector{open, r.counts.accepted, r.counts.refused, r.counts.sessions, r.counts.noPort, r.counts.led}
}

// open is the number of connections and sessions.
func (r *Relay) open() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.fronts {
		n += f.carrier.open()
	}
	return n
}

const (
	// warnEvery is how often the same is said of a front.
	warnEvery = 10 * time.Minute
	// nearlyUsed is the share of the source ports towards one endpoint, in percent, from which users should know.
	nearlyUsed = 80
)

// pressure watches the source ports of one front. Each connection to an endpoint needs one that no other connection to it has.
type pressure struct{ warned atomic.Int64 }

// exhausted notes that the system had no source port left.
func (f *front) exhausted() {
	f.counts.noPort.Inc()
	f.warnPorts("this host has no source port left for another connection to an endpoint")
}

// crowded looks whether open connections, spread over the endpoints, come near the number of source ports.
func (f *front) crowded(open, ports int) {
	if targets := len(f.route.Load().Backends); ports > 0 && targets > 0 && open*100 >= ports*targets*nearlyUsed {
		f.warnPorts(fmt.Sprintf("%d connections are open to %d endpoints, and this host has %d source ports for each", open, targets, ports))
	}
}

func (f *front) warnPorts(message string) {
	now, last := f.cfg.Clock.Now().UnixNano(), f.pressure.warned.Load()
	if last != 0 && now-last < int64(warnEvery) || !f.pressure.warned.CompareAndSwap(last, now) {
		return
	}
	service := f.route.Load().Service.ServiceName
	klog.InfoS("Source ports are nearly used up", "service", service, "front", f.route.Load().Front, "detail", message)
	if f.cfg.Warn != nil {
		go f.cfg.Warn(service, "SourcePortsNearlyUsedUp", message+"; more endpoints, or a wider range (net.ipv4.ip_local_port_range on Linux), help")
	}
}
