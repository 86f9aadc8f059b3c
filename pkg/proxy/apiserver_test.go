package proxy_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// TestAPIServers: the addresses of the API server's Service and endpoints are told when they change, and those of no other.
func TestAPIServers(t *testing.T) {
	r := &rig{t: t, backend: proxytest.NewBackend(), synced: make(chan struct{})}
	node := proxy.NodeInfo{Name: "n1"}
	metrics := proxy.NewMetrics(prometheus.NewRegistry(), node)
	told := make(chan []netip.Addr, 10)
	r.loop = proxy.NewLoop(proxy.LoopConfig{Node: node, Backend: r.backend, Health: proxy.NewHealth(clock.RealClock{}, node, metrics), Metrics: metrics, Resync: time.Hour,
		APIServers: func(a []netip.Addr) { told <- a }, Clock: clock.RealClock{}})
	want := func(texts ...string) {
		t.Helper()
		var all []netip.Addr
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		if got := <-told; !slices.Equal(got, all) {
			t.Fatalf("told %v, want %v", got, all)
		}
	}
	service, slice := testService("kubernetes", "10.96.0.1"), testSlice("kubernetes", "10.1.0.10")
	service.Namespace, slice.Namespace = "default", "default"
	r.loop.SetService(service)
	r.loop.SetSlice(slice)
	r.run()
	close(r.synced)
	want("10.96.0.1", "10.1.0.10")
	r.loop.SetService(testService("web", "10.96.0.2"))
	r.until("another", func() bool { return len(r.backend.Calls()) > 1 })
	slice = testSlice("kubernetes", "10.1.0.10", "10.1.0.20")
	slice.Namespace = "default"
	r.loop.SetSlice(slice)
	want("10.96.0.1", "10.1.0.10", "10.1.0.20")
	if len(told) > 0 {
		t.Errorf("told more: %v", <-told)
	}
}
