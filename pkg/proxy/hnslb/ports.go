package hnslb

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/portblocks"
)

// metrics report the use of dynamic ports by load balancers.
type metrics struct{ reserving, free prometheus.Gauge }

func newMetrics() metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubeproxy", Subsystem: "hns", Name: name, Help: help})
	}
	return metrics{gauge("reserving_balancers", "Load balancers in HNS without direct server return, each of which reserves dynamic TCP ports"),
		gauge("free_port_blocks", "Free blocks of 64 dynamic TCP ports when a load balancer last needed one; -1: not known")}
}

// Collectors returns the Balancer's metrics.
func (b *Balancer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{b.metrics.reserving, b.metrics.free}
}

// take reserves the ports that HNS needs for a new load balancer. Free ports are counted once per Sync that needs them,
// and never without Config.Ports.
func (b *Balancer) take(ctx context.Context, lb *hns.LoadBalancer) error {
	if lb.DSR || b.cfg.Ports == nil {
		return nil
	}
	if b.budget == nil {
		b.budget = &portblocks.Budget{}
		b.metrics.free.Set(-1)
		ports, err := b.cfg.Ports(ctx)
		if err == nil {
			*b.budget = portblocks.NewBudget(ports)
			b.metrics.free.Set(float64(ports.Free()))
		} else {
			klog.V(2).InfoS("Cannot count dynamic ports; HNS may refuse load balancers", "err", err)
		}
	}
	return b.budget.Take()
}

// countReserving counts the load balancers that reserve ports.
func (b *Balancer) countReserving() {
	n := 0
	for _, lb := range b.balancers {
		if !lb.DSR {
			n++
		}
	}
	b.metrics.reserving.Set(float64(n))
}
