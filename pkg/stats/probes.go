package stats

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Probes counts probe results under upstream's names (/metrics/probes). It is created before the pods, which count probes; its Handler is created
// after them.
type Probes struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	handler  http.Handler

	mu   sync.Mutex
	seen map[types.UID]types.NamespacedName // pods with counts
}

// Results of a probe, as values of the label result.
const (
	probePassed  = "successful"
	probeFailed  = "failed"
	probeUnknown = "unknown"
)

// NewProbes returns a Probes with zero counts.
func NewProbes() *Probes {
	p := &Probes{
		seen: map[types.UID]types.NamespacedName{},
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prober_probe_total", Help: "Probes of containers, by result"},
			[]string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prober_probe_duration_seconds", Help: "Duration of probes of containers"},
			[]string{"probe_type", "container", "pod", "namespace"}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.total, p.duration)
	p.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return p
}

// Count counts one probe: kind is Startup, Liveness or Readiness; err: it could not run.
func (p *Probes) Count(of *v1.Pod, container, kind string, passed bool, err error, took time.Duration) {
	result := probeFailed
	switch {
	case err != nil:
		result = probeUnknown
	case passed:
		result = probePassed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[of.UID] = nameOf(of)
	p.total.WithLabelValues(kind, result, container, of.Name, of.Namespace, string(of.UID)).Inc()
	p.duration.WithLabelValues(kind, container, of.Name, of.Namespace).Observe(took.Seconds())
}

// Handler serves the counts. Each request drops the counts of deleted pods.
func (p *Probes) Handler(pods Pods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.forget(pods.Snapshot())
		p.handler.ServeHTTP(w, r)
	})
}

// forget drops the pods that are not in all.
func (p *Probes) forget(all []pod.View) {
	uids, names := map[types.UID]bool{}, map[types.NamespacedName]bool{}
	for _, view := range all {
		uids[view.Pod.UID], names[nameOf(view.Pod)] = true, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, name := range p.seen {
		if uids[uid] {
			continue
		}
		delete(p.seen, uid)
		p.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
		if !names[name] {
			p.duration.DeletePartialMatch(prometheus.Labels{"pod": name.Name, "namespace": name.Namespace})
		}
	}
}

func nameOf(p *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}
