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
	ledger                              *ledger
}

func newCounts(cfg *Config) *counts {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubeproxy", Subsystem: "relay", Name: name, Help: help})
	}
	return &counts{
		ledger:   newLedger(cfg),
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
	return []prometheus.Collector{open, r.counts.accepted, r.counts.refused, r.counts.sessions, r.counts.noPort, r.counts.led, r.counts.ledger}
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

// causeNames are the limits of TCP as metrics name them, sessionNames those of UDP.
var (
	causeNames = [causes]string{
		clientLimit: "connections_of_client", pairLimit: "connections_of_client_at_front", earlyLimit: "half_open_of_front", frontLimit: "connections_of_front",
		allLimit: "connections", portsLimit: "source_ports_to_endpoint", portsOfClient: "source_ports_to_endpoint_of_client", filesLimit: "files",
	}
	sessionNames = [causes]string{pairLimit: "sessions_of_client_at_front", frontLimit: "sessions_of_front", allLimit: "sessions"}
)

// limited counts what limits of one protocol meant. Those without a name are none.
type limited struct{ refused, closed [causes]prometheus.Counter }

func newLimited(names [causes]string) (l limited) {
	for c, name := range names {
		l.refused[c], l.closed[c] = limitedTotal(name, "refused"), limitedTotal(name, "closed")
	}
	return l
}

func (l *limited) named(names [causes]string) (out []prometheus.Counter) {
	for c, name := range names {
		if name != "" {
			out = append(out, l.refused[c], l.closed[c])
		}
	}
	return out
}

const (
	limitedName = "kubeproxy_relay_limited_total"
	limitedHelp = "Connections and sessions that a limit refused, or that were closed to make room."
)

func limitedTotal(limit, outcome string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: limitedName, Help: limitedHelp, ConstLabels: prometheus.Labels{"limit": limit, "outcome": outcome}})
}

var (
	limitDesc = prometheus.NewDesc("kubeproxy_relay_limit", "How much there may be, at this moment.", []string{"of"}, nil)
	usedDesc  = prometheus.NewDesc("kubeproxy_relay_limit_used", "How much there is; of limits for each client, front or endpoint: what the one with the most has.", []string{"of"}, nil)
)

// Describe implements prometheus.Collector.
func (l *ledger) Describe(to chan<- *prometheus.Desc) {
	to <- limitDesc
	to <- usedDesc
	for _, c := range l.counters() {
		to <- c.Desc()
	}
}

// Collect implements prometheus.Collector.
func (l *ledger) Collect(to chan<- prometheus.Metric) {
	for _, u := range l.uses() {
		to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(u.limit), u.of)
		to <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(u.used), u.of)
	}
	for _, c := range l.counters() {
		to <- c
	}
}

func (l *ledger) counters() []prometheus.Counter {
	return append(append(l.connections.named(causeNames), l.sessions.named(sessionNames)...), l.sticky.evicted)
}

type use struct {
	of          string
	used, limit int
}

// uses are all limits and what is used of them.
func (l *ledger) uses() []use {
	sticky, mostSticky := l.sticky.used()
	l.mu.Lock()
	defer l.mu.Unlock()
	tcp, udp := l.now()
	ofPair, halfOpen := l.tcp.mostAtFront()
	ofSessions, _ := l.udp.mostAtFront()
	toOne, ofOne := l.tcp.mostToOne()
	return []use{
		{"connections", l.tcp.count, tcp.all},
		{"connections_of_client", l.tcp.clients.top, tcp.client},
		{"connections_of_front", l.tcp.fronts.top, tcp.front},
		{"connections_of_client_at_front", ofPair, tcp.pair},
		{"half_open_of_front", halfOpen, tcp.early.all},
		{"source_ports_to_endpoint", toOne, l.limits.ports.all},
		{"source_ports_to_endpoint_of_client", ofOne, l.limits.ports.client},
		{"sessions", l.udp.count, udp.all},
		{"sessions_of_front", l.udp.fronts.top, udp.front},
		{"sessions_of_client_at_front", ofSessions, udp.pair},
		{"files", l.files(), l.limits.files},
		{"pipes", int(l.pipes.Load()), l.limits.pipes},
		{"affinity_clients", sticky, maxSticky},
		{"affinity_clients_of_front", mostSticky, maxStickyFront},
	}
}

// files are the descriptors of fronts, connections and sessions. The lock is held.
func (l *ledger) files() int { return l.listening + 2*l.tcp.count + l.udp.count }
