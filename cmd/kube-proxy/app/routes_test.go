package app

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/routes"
	"github.com/winkube/winkube/pkg/routes/routestest"
)

// lists sends the table's contents after each change.
type lists struct {
	*routestest.Table
	changed chan string // the table's contents after a change
}

func (l lists) Change(ctx context.Context, d routes.Diff) error {
	err := l.Table.Change(ctx, d)
	l.changed <- l.String()
	return err
}

// TestClusterCIDR: the flag and the facts that the rest of the proxy learns reach the routes.
func TestClusterCIDR(t *testing.T) {
	o, _ := mustParse(t, "--hostname-override=n1", "--kubeconfig=x", "--cluster-cidr=10.244.0.0/16,fd00:244::/48")
	s, err := o.settings(linux)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name, addr, cidr string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: []string{cidr}},
			Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: addr}}}}
	}
	// Without the flag n3 would be believed: it is near the others.
	client := clientsettest.NewClientset(node("n1", "10.1.0.11", "10.244.0.0/24"), node("n2", "10.1.0.12", "10.244.1.0/24"), node("n3", "10.1.0.13", "10.245.0.0/24"), node("n4", "10.1.0.14", "10.244.9.0/24"))
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	table := lists{routestest.NewTable(netip.MustParsePrefix("10.1.0.11/24")), make(chan string, 10)}
	facts := &sharedFacts{Facts: routes.NewFacts()}
	manager := s.newRoutes(table, facts, func(routes.Problem) {}, apiServers("https://10.1.0.10:6443"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	factory.Start(ctx.Done())
	go func() { done <- manager.Run(ctx, informer) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		factory.Shutdown()
	})
	if got := <-table.changed; !strings.Contains(got, "10.244.1.0/24") || !strings.Contains(got, "10.244.9.0/24") || strings.Contains(got, "10.245.0.0/24") {
		t.Errorf("routes are\n%s", got)
	}
	facts.SetServices([]netip.Prefix{netip.MustParsePrefix("10.244.9.0/28")})
	if got := <-table.changed; strings.Contains(got, "10.244.9.0/24") || !strings.Contains(got, "10.244.1.0/24") {
		t.Errorf("a range of Services is routed:\n%s", got)
	}
	facts.SetServices(nil)
	if got := <-table.changed; !strings.Contains(got, "10.244.9.0/24") {
		t.Errorf("routes are\n%s", got)
	}
	facts.SetAPIServers([]netip.Addr{netip.MustParseAddr("10.244.9.6")})
	if got := <-table.changed; strings.Contains(got, "10.244.9.0/24") {
		t.Errorf("the API server's endpoint is routed:\n%s", got)
	}
}

func TestAPIServers(t *testing.T) {
	for server, want := range map[string]string{"https://10.1.0.10:6443": "10.1.0.10", "192.0.2.1:8080": "192.0.2.1", "https://[fd00::1]:6443/x": "fd00::1", "https://api.example.com": "", "://": ""} {
		got := ""
		for _, a := range apiServers(server) {
			got = a.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", server, got, want)
		}
	}
}
