package connect

import "github.com/prometheus/client_golang/prometheus"

// metrics counts what the kernel decides, and what is left to the relay.
type metrics struct {
	of              *Balancer
	ended, attached prometheus.Counter
}

var (
	frontsDesc    = prometheus.NewDesc("kubeproxy_connect_fronts", "ClusterIP ports for which the kernel chooses an endpoint when a client on this host connects", nil, nil)
	leftDesc      = prometheus.NewDesc("kubeproxy_connect_fronts_without_room", "ClusterIP ports that are relayed because the BPF maps have no room for them or the kernel did not accept them", nil, nil)
	decisionsDesc = prometheus.NewDesc("kubeproxy_connect_decisions_total", "Connections and UDP flows for which the kernel chose an endpoint (tcp, udp), or refused because there is none (refused)", []string{"result"}, nil)
	limitDesc     = prometheus.NewDesc("kubeproxy_connect_limit", "Limit on kernel state that clients cause", []string{"of"}, nil)
	usedDesc      = prometheus.NewDesc("kubeproxy_connect_limit_used", "Use of the limit. For limits per client: the highest use", []string{"of"}, nil)
)

func newMetrics(b *Balancer) *metrics {
	return &metrics{b,
		prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_connect_udp_flows_ended_total", Help: "UDP flows ended because their endpoint is gone"}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_connect_programs_attached_again_total", Help: "BPF programs that something had detached"})}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- frontsDesc
	to <- leftDesc
	to <- decisionsDesc
	to <- limitDesc
	to <- usedDesc
	m.ended.Describe(to)
	m.attached.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.of.mu.Lock()
	fronts, left := len(m.of.entries), len(m.of.left)+len(m.of.refused)
	tcp, udp, refused := m.of.kernel.Decisions()
	uses := m.of.kernel.Uses()
	m.of.mu.Unlock()
	to <- prometheus.MustNewConstMetric(frontsDesc, prometheus.GaugeValue, float64(fronts))
	to <- prometheus.MustNewConstMetric(leftDesc, prometheus.GaugeValue, float64(left))
	for result, count := range map[string]uint64{"tcp": tcp, "udp": udp, "refused": refused} {
		to <- prometheus.MustNewConstMetric(decisionsDesc, prometheus.CounterValue, float64(count), result)
	}
	for _, u := range uses {
		to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(u.Limit), u.Of)
		to <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(u.Used), u.Of)
	}
	m.ended.Collect(to)
	m.attached.Collect(to)
}
