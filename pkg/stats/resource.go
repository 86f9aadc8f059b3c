package stats

import (
	"context"
	"net/http"
	"time"
)

// The names and labels of upstream's /metrics/resource, on which metrics-server relies.
var (
	nodeCPU            = counterOf("node_cpu_usage_seconds_total", "CPU time that the node has used, in core-seconds")
	nodeMemory         = gaugeOf("node_memory_working_set_bytes", "Memory in use on the node that cannot be reclaimed immediately")
	nodeSwap           = gaugeOf("node_swap_usage_bytes", "Memory of the node that is swapped out; not on Windows")
	containerStart     = gaugeOf("container_start_time_seconds", "When the container started, in seconds since 1970")
	containerCPU       = counterOf("container_cpu_usage_seconds_total", "CPU time that the container has used, in core-seconds")
	containerMemory    = gaugeOf("container_memory_working_set_bytes", "Memory in use by the container that cannot be reclaimed immediately")
	containerSwap      = gaugeOf("container_swap_usage_bytes", "Memory of the container that is swapped out; not on Windows")
	containerSwapLimit = gaugeOf("container_swap_limit_bytes", "Swap limit of the container; not on Windows")
	podCPU             = counterOf("pod_cpu_usage_seconds_total", "CPU time that the pod's containers have used, in core-seconds")
	podMemory          = gaugeOf("pod_memory_working_set_bytes", "Memory in use by the pod that cannot be reclaimed immediately")
	podSwap            = gaugeOf("pod_swap_usage_bytes", "Memory of the pod that is swapped out; not on Windows")
	scrapeErrorOld     = gaugeOf("scrape_error", "1 when something could not be measured, else 0; now resource_scrape_error")
	scrapeError        = gaugeOf("resource_scrape_error", "1 when something could not be measured, else 0")
)

// ResourceHandler serves /metrics/resource.
func (c *Collector) ResourceHandler() http.Handler {
	return servePages(func(r *http.Request) *page { return c.resource(r.Context()) })
}

func (c *Collector) resource(ctx context.Context) *page {
	u := c.collect(ctx)
	page := newPage(u.at)
	seconds := func(n *uint64) float64 { return float64(*n) / float64(time.Second) }
	all := c.summarize(u, nil)
	if n := all.Node; n.CPU != nil {
		page.send(nodeCPU, seconds(n.CPU.UsageCoreNanoSeconds), nil)
		page.send(nodeMemory, float64(*n.Memory.WorkingSetBytes), nil)
		if n.Swap != nil {
			page.send(nodeSwap, float64(*n.Swap.SwapUsageBytes), nil)
		}
	}
	seen := map[string]bool{}
	for _, p := range all.Pods {
		if key := p.PodRef.Namespace + "/" + p.PodRef.Name; seen[key] {
			continue // a pod that terminates next to its successor: the labels cannot distinguish them
		} else {
			seen[key] = true
		}
		for _, c := range p.Containers {
			labels := labelsOf("container", c.Name, "namespace", p.PodRef.Namespace, "pod", p.PodRef.Name)
			if start := c.StartTime; start.Unix() > 0 {
				page.sendTimeless(containerStart, float64(start.UnixNano())/float64(time.Second), labels)
			}
			page.send(containerCPU, seconds(c.CPU.UsageCoreNanoSeconds), labels)
			page.send(containerMemory, float64(*c.Memory.WorkingSetBytes), labels)
			if c.Swap != nil {
				page.send(containerSwap, float64(*c.Swap.SwapUsageBytes), labels)
				if left := c.Swap.SwapAvailableBytes; left != nil {
					page.send(containerSwapLimit, float64(*left+*c.Swap.SwapUsageBytes), labels)
				}
			}
		}
		labels := labelsOf("namespace", p.PodRef.Namespace, "pod", p.PodRef.Name)
		page.send(podCPU, seconds(p.CPU.UsageCoreNanoSeconds), labels)
		page.send(podMemory, float64(*p.Memory.WorkingSetBytes), labels)
		if p.Swap != nil {
			page.send(podSwap, float64(*p.Swap.SwapUsageBytes), labels)
		}
	}
	var failed float64
	if u.failed > 0 {
		failed = 1
	}
	page.sendTimeless(scrapeErrorOld, failed, nil)
	page.sendTimeless(scrapeError, failed, nil)
	return page
}
