package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// Metrics are the proxy's metrics, with the names that upstream's dashboards use.
type Metrics struct {
	families []v1.IPFamily

	sync, full, partial, programming   *prometheus.HistogramVec
	lastSync, lastQueued               *prometheus.GaugeVec
	endpointsPending, servicesPending  prometheus.Gauge
	endpointsTotal, servicesTotal      prometheus.Counter
	noLocal                            *prometheus.GaugeVec
	healthz, livez                     *prometheus.CounterVec
	routes, routesFailing, backEndFail prometheus.Gauge
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registry prometheus.Registerer, node NodeInfo) *Metrics {
	const ns = "kubeproxy"
	family := []string{"ip_family"}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: name, Help: help, Buckets: buckets}, family)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help})
	}
	codes := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help}, []string{"code"})
	}
	quick := prometheus.ExponentialBuckets(0.001, 2, 15)
	m := &Metrics{
		families:         node.families(),
		sync:             histogram("sync_proxy_rules_duration_seconds", "Duration of a sync of the back end, in seconds.", quick),
		full:             histogram("sync_full_proxy_rules_duration_seconds", "Duration of a sync that compares all Services, in seconds.", quick),
		partial:          histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a sync of changed Services, in seconds.", quick),
		programming:      histogram("network_programming_duration_seconds", "Time from the change of a pod or Service to the end of the sync that applies it, in seconds.", programmingBuckets()),
		lastSync:         gauges("sync_proxy_rules_last_timestamp_seconds", "Time of the last successful sync, as a Unix timestamp.", family...),
		lastQueued:       gauges("sync_proxy_rules_last_queued_timestamp_seconds", "Time of the last queued change, as a Unix timestamp.", family...),
		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending", "Pending EndpointSlice changes."),
		servicesPending:  gauge("sync_proxy_rules_service_changes_pending", "Pending Service changes."),
		endpointsTotal:   counter("sync_proxy_rules_endpoint_changes_total", "Total EndpointSlice changes."),
		servicesTotal:    counter("sync_proxy_rules_service_changes_total", "Total Service changes."),
		noLocal:          gauges("sync_proxy_rules_no_local_endpoints_total", "Services with a Local traffic policy and no endpoint on this node.", "traffic_policy", "ip_family"),
		healthz:          codes("proxy_healthz_total", "Responses of /healthz, by status code."),
		livez:            codes("proxy_livez_total", "Responses of /livez, by status code."),
		routes:           gauge("routes", "Fronts of Services on this node."),
		routesFailing:    gauge("services_failing", "Services with a front that the back end could not serve."),
		backEndFail:      gauge("sync_failing", "1 if the last sync failed completely, otherwise 0."),
	}
	registry.MustRegister(m.sync, m.full, m.partial, m.programming, m.lastSync, m.lastQueued, m.endpointsPending, m.servicesPending,
		m.endpointsTotal, m.servicesTotal, m.noLocal, m.healthz, m.livez, m.routes, m.routesFailing, m.backEndFail)
	return m
}

// programmingBuckets returns upstream's: a quarter and half a second, each second of a minute, then coarser up to five
// minutes.
func programmingBuckets() []float64 {
	out := []float64{0.25, 0.5}
	out = append(out, prometheus.LinearBuckets(1, 1, 59)...)
	out = append(out, prometheus.LinearBuckets(60, 5, 12)...)
	return append(out, prometheus.LinearBuckets(120, 30, 7)...)
}

func (m *Metrics) queued(now time.Time) {
	for _, f := range m.families {
		m.lastQueued.WithLabelValues(string(f)).Set(seconds(now))
	}
}

// synced records one Sync. One Sync serves all families, so each family gets the same figure.
func (m *Metrics) synced(took time.Duration, whole bool) {
	kind := m.partial
	if whole {
		kind = m.full
	}
	for _, f := range m.families {
		m.sync.WithLabelValues(string(f)).Observe(took.Seconds())
		kind.WithLabelValues(string(f)).Observe(took.Seconds())
	}
}

func (m *Metrics) good(now time.Time) {
	for _, f := range m.families {
		m.lastSync.WithLabelValues(string(f)).Set(seconds(now))
	}
}

func (m *Metrics) programmed(family v1.IPFamily, took time.Duration) {
	m.programming.WithLabelValues(string(family)).Observe(took.Seconds())
}

// setNoLocal counts the Services that drop traffic because they have no endpoint on this node.
func (m *Metrics) setNoLocal(table *Table) {
	type label struct{ policy, family string }
	count := map[label]map[ServiceName]struct{}{}
	for i := range table.Routes {
		r := &table.Routes[i]
		if !r.Drop {
			continue
		}
		l := label{"external", "IPv6"}
		if r.Kind == ClusterIP {
			l.policy = "internal"
		}
		if r.Front.Addr().Is4() {
			l.family = "IPv4"
		}
		if count[l] == nil {
			count[l] = map[ServiceName]struct{}{}
		}
		count[l][r.Service.ServiceName] = struct{}{}
	}
	for _, policy := range []string{"internal", "external"} {
		for _, f := range m.families {
			m.noLocal.WithLabelValues(policy, string(f)).Set(float64(len(count[label{policy, string(f)}])))
		}
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
