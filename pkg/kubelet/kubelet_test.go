package kubelet

import (
	"context"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/admit"
	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/source"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/server"
	"github.com/winkube/winkube/pkg/stats"
)

// config is a kubelet of this host with a fake engine, whose pods use a network that others manage.
func config(t *testing.T) Config {
	t.Helper()
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	sysctls, err := admit.NewSysctls(facts.KernelVersion, nil)
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(dockertest.New(dockertest.Options{OS: facts.OS, Build: 20348}))
	t.Cleanup(func() { engine.CloseClientConnections(); engine.Close() })
	platform, root := pod.Platform{OS: facts.OS, Arch: facts.Arch, Build: 20348, SharedNetwork: true}, t.TempDir()
	ips := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	return Config{
		Machine:  Machine{NodeName: "n1", Platform: platform, Facts: facts, NodeIPs: ips, RootDir: root},
		Sysctls:  sysctls,
		Node:     node.Config{Name: "n1", MaxPods: 10},
		Engine:   docker.Config{Host: "tcp://" + engine.Listener.Addr().String(), Node: "n1", Boot: facts.BootID, Platform: platform, InfraImage: "pause", Hash: func(*v1.Container) string { return "" }},
		Images:   Images{Policy: credential.NeverVerifyPreloaded},
		Network:  network.Config{Mode: network.External, External: map[string]string{"linux": "bridge", "windows": "nat"}[facts.OS], Platform: platform, NodeIPs: ips},
		Resolver: start.Config{NodeName: "n1", Platform: platform},
		Pods:     worker.Config{Platform: platform, Resync: time.Minute},
		Source:   source.Config{NodeName: "n1"},
		Server:   server.Config{Address: "127.0.0.1:0", NodeName: "n1", TLS: server.TLS{CertDir: root}, Authentication: server.Authentication{Anonymous: true}, Authorization: server.Authorization{Mode: server.AlwaysAllow}},
		Counters: stats.NewCounters(), Guard: guard.Config{Images: guard.ImagePolicy{High: 100}},
	}
}

// TestRun: all parts work together, the Node becomes ready, and Run returns when the context ends or the host shuts down. In the latter
// case the Node's status says so first.
func TestRun(t *testing.T) {
	for name, cause := range map[string]error{"ended": context.Canceled, "shutdown": daemon.ErrShutdown} {
		t.Run(name, func(t *testing.T) {
			client := clientsettest.NewClientset()
			k, err := New(config(t), kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error, 1)
			go func() { done <- k.Run(ctx) }()
			await(t, "the Node is ready", func() bool { return ready(t, client) == v1.ConditionTrue })
			if k.closing.Begun() {
				t.Error("a shutdown has begun")
			}
			cancel(cause)
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("a part does not end")
			}
			if k.closing.Begun() != (cause == daemon.ErrShutdown) {
				t.Errorf("shutdown %v", k.closing.Begun())
			}
		})
	}
}

func ready(t *testing.T, client *clientsettest.Clientset) v1.ConditionStatus {
	t.Helper()
	n, err := client.Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return ""
	}
	for _, c := range n.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// TestNewMistakes: New reports configuration errors before anything runs.
func TestNewMistakes(t *testing.T) {
	client := clientsettest.NewClientset()
	clients := kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client}
	for what, change := range map[string]func(*Config){
		"grace":     func(c *Config) { c.Shutdown.Grace = -1 },
		"policy":    func(c *Config) { c.Images.Policy = "Perhaps" },
		"threshold": func(c *Config) { c.Node.EvictionHard = map[string]string{"memory.available": "x"} },
		"address":   func(c *Config) { c.Server.Address = "nowhere" },
	} {
		cfg := config(t)
		change(&cfg)
		if _, err := New(cfg, clients); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestServerOff: without the HTTPS port the other parts work, and its address is not used.
func TestServerOff(t *testing.T) {
	client := clientsettest.NewClientset()
	cfg := config(t)
	cfg.Server.Off, cfg.Server.Address = true, "nowhere"
	k, err := New(cfg, kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	await(t, "the Node is ready", func() bool { return ready(t, client) == v1.ConditionTrue })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
