package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// free returns an address of this machine's loopback at which nothing listens.
func free(t *testing.T) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), proxytest.FreePort(t))
}

func get(url string) (int, string, error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// eventually polls until ok, for at most a minute.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: never", what)
		}
	}
}

// noFacts ignores facts.
type noFacts struct{}

func (noFacts) SetServices([]netip.Prefix) {}
func (noFacts) SetAPIServers([]netip.Addr) {}

type noRoutes struct{ synced chan bool }

func (n noRoutes) Run(ctx context.Context, nodes cache.SharedIndexInformer) error {
	n.synced <- cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced)
	<-ctx.Done()
	return ctx.Err()
}

// TestProxy runs the whole proxy with a fake API server and real sockets on loopback.
func TestProxy(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
	t.Cleanup(server.Close)
	target := netip.MustParseAddrPort(server.Listener.Addr().String())
	front := free(t)
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: v1.ServiceSpec{ClusterIP: "127.77.78.79", Ports: []v1.ServicePort{{Port: int32(front.Port())}}}}
	slice := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{target.Addr().String()}}},
		Ports: []discovery.EndpointPort{{Port: ptr.To(int32(target.Port()))}}}
	client := clientsettest.NewClientset(service, slice, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	cfg := Config{Node: proxy.NodeInfo{Name: "n1"}, Healthz: free(t), Metrics: free(t), Mode: "userspace", Profiling: true,
		Effective: map[string]string{"clusterCIDR": "10.244.0.0/16"}}
	routes := noRoutes{make(chan bool, 1)}
	base := NewBase(cfg.Node, clock.RealClock{})
	backend := relay.New(relay.Goroutines, relay.Config{Addresses: relaytest.NewAddresses(), Clock: clock.RealClock{}})
	p, err := New(cfg, Parts{Client: client, Base: base, Backend: backend, Routes: routes, Facts: noFacts{}, Events: record.NewFakeRecorder(100), Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()

	url := fmt.Sprintf("http://127.77.78.79:%d/", front.Port())
	eventually(t, "served", func() bool { _, body, _ := get(url); return body == "served" })
	if !<-routes.synced {
		t.Error("routes saw no nodes")
	}
	for path, want := range map[string]string{
		cfg.Healthz.String() + "/healthz":      `"nodeEligible":true`,
		cfg.Healthz.String() + "/livez":        `"healthy":true`,
		cfg.Metrics.String() + "/healthz":      "lastUpdated",
		cfg.Metrics.String() + "/proxyMode":    "userspace",
		cfg.Metrics.String() + "/configz":      `{"kubeproxy.config.k8s.io":{"clusterCIDR":"10.244.0.0/16"}}`,
		cfg.Metrics.String() + "/debug/table":  "default/web",
		cfg.Metrics.String() + "/metrics":      "kubeproxy_sync_proxy_rules_duration_seconds_count",
		cfg.Metrics.String() + "/debug/pprof/": "goroutine",
	} {
		if code, body, err := get("http://" + path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %v, %.300s", path, code, err, body)
		}
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	backend.Close()
	http.DefaultClient.CloseIdleConnections()
	if _, _, err := get(url); err == nil {
		t.Error("still served after the end")
	}
}

// TestTakenPort: Run returns an error if an address is in use, and does not call the back end.
func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	backend := proxytest.NewBackend()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for the port
	for _, cfg := range []Config{{Healthz: netip.MustParseAddrPort(l.Addr().String())}, {Healthz: free(t), Metrics: netip.MustParseAddrPort(l.Addr().String())}} {
		p, err := New(cfg, Parts{Client: clientsettest.NewClientset(), Base: NewBase(cfg.Node, clock.RealClock{}), Backend: backend, Routes: noRoutes{make(chan bool, 1)}, Facts: noFacts{}, Events: record.NewFakeRecorder(1), Clock: clock.RealClock{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(ctx); err == nil || !strings.Contains(err.Error(), "-bind-address") {
			t.Errorf("Run: %v", err)
		}
	}
	if calls := backend.Calls(); len(calls) > 0 {
		t.Errorf("the host was changed: %v", calls)
	}
}
