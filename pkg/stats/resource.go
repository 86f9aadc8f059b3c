package stats

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var (
	container = []string{"container", "pod", "namespace"}
	ofPod     = container[1:]
)

// The names and labels of upstream's /metrics/resource, on which metrics-server relies.
var (
	nodeCPU            = prometheus.NewDesc("node_cpu_usage_seconds_total", "CPU time that the node has used, in core-seconds", nil, nil)
	nodeMemory         = prometheus.NewDesc("node_memory_working_set_bytes", "Memory in use on the node that cannot be given back at once", nil, nil)
	nodeSwap           = prometheus.NewDesc("node_swap_usage_bytes", "Memory of the node that is swapped out; not on Windows", nil, nil)
	containerStart     = prometheus.NewDesc("container_start_time_seconds", "When the container started, in seconds since 1970", container, nil)
	containerCPU       = prometheus.NewDesc("container_cpu_usage_seconds_total", "CPU time that the container has used, in core-seconds", container, nil)
	containerMemory    = prometheus.NewDesc("container_memory_working_set_bytes", "Memory in use by the container that cannot be given back at once", container, nil)
	containerSwap      = prometheus.NewDesc("container_swap_usage_bytes", "Memory of the container that is swapped out; not on Windows", container, nil)
	containerSwapLimit = prometheus.NewDesc("container_swap_limit_bytes", "How much of the container can be swapped out; not on Windows", container, nil)
	podCPU             = prometheus.NewDesc("pod_cpu_usage_seconds_total", "CPU time that the pod's containers have used, in core-seconds", ofPod, nil)
	podMemory          = prometheus.NewDesc("pod_memory_working_set_bytes", "Memory in use by the pod that cannot be given back at once", ofPod, nil)
	podSwap            = prometheus.NewDesc("pod_swap_usage_bytes", "Memory of the pod that is swapped out; not on Windows", ofPod, nil)
	scrapeErrorOld     = prometheus.NewDesc("scrape_error", "1 when something could not be measured, else 0; now resource_scrape_error", nil, nil)
	scrapeError        = prometheus.NewDesc("resource_scrape_error", "1 when something could not be measured, else 0", nil, nil)
)

// answer is one answer of a handler: a collection of its own.
type answer struct {
	ctx     context.Context
	collect func(context.Context, chan<- prometheus.Metric)
}

// Describe promises nothing: which containers there are is known only when they are measured.
func (answer) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (a answer) Collect(out chan<- prometheus.Metric) { a.collect(a.ctx, out) }

// serveMetrics answers each request with what collect sends for it.
func serveMetrics(collect func(context.Context, chan<- prometheus.Metric)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(answer{r.Context(), collect})
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
}

// ResourceHandler serves /metrics/resource.
func (c *Collector) ResourceHandler() http.Handler { return serveMetrics(c.sendResource) }

func (c *Collector) sendResource(ctx context.Context, out chan<- prometheus.Metric) {
	u := c.collect(ctx)
	send := func(kind prometheus.ValueType, desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.NewMetricWithTimestamp(u.at, prometheus.MustNewConstMetric(desc, kind, value, labels...))
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	seconds := func(n *uint64) float64 { return float64(*n) / float64(time.Second) }
	all := c.summarize(u, nil)
	if n := all.Node; n.CPU != nil {
		send(counter, nodeCPU, seconds(n.CPU.UsageCoreNanoSeconds))
		send(gauge, nodeMemory, float64(*n.Memory.WorkingSetBytes))
		if n.Swap != nil {
			send(gauge, nodeSwap, float64(*n.Swap.SwapUsageBytes))
		}
	}
	seen := map[string]bool{}
	for _, p := range all.Pods {
		if key := p.PodRef.Namespace + "/" + p.PodRef.Name; seen[key] {
			continue // a pod that ends beside its successor: the labels do not tell them apart
		} else {
			seen[key] = true
		}
		pod, namespace := p.PodRef.Name, p.PodRef.Namespace
		for _, c := range p.Containers {
			if start := c.StartTime; start.Unix() > 0 {
				out <- prometheus.MustNewConstMetric(containerStart, gauge, float64(start.UnixNano())/float64(time.Second), c.Name, pod, namespace)
			}
			send(counter, containerCPU, seconds(c.CPU.UsageCoreNanoSeconds), c.Name, pod, namespace)
			send(gauge, containerMemory, float64(*c.Memory.WorkingSetBytes), c.Name, pod, namespace)
			if c.Swap != nil {
				send(gauge, containerSwap, float64(*c.Swap.SwapUsageBytes), c.Name, pod, namespace)
				if left := c.Swap.SwapAvailableBytes; left != nil {
					send(gauge, containerSwapLimit, float64(*left+*c.Swap.SwapUsageBytes), c.Name, pod, namespace)
				}
			}
		}
		send(counter, podCPU, seconds(p.CPU.UsageCoreNanoSeconds), pod, namespace)
		send(gauge, podMemory, float64(*p.Memory.WorkingSetBytes), pod, namespace)
		if p.Swap != nil {
			send(gauge, podSwap, float64(*p.Swap.SwapUsageBytes), pod, namespace)
		}
	}
	var failed float64
	if u.failed > 0 {
		failed = 1
	}
	for _, desc := range []*prometheus.Desc{scrapeErrorOld, scrapeError} {
		out <- prometheus.MustNewConstMetric(desc, gauge, failed)
	}
}
