package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

func (c *Cluster) nodeProcesses(node *Host) []*Process {
	process := func(name string, argv func() []string) *Process {
		return &Process{Name: name, host: node, argv: argv}
	}
	return []*Process{
		process("containerd", node.containerdArgv),
		process("dockerd", node.dockerdArgv),
		{Name: "engineproxy", host: node, argv: node.engineProxyArgv, unwanted: func() bool { return c.EngineAPI == "" }},
		process("kubelet", node.KubeletArgv),
		process("proxy", node.ProxyArgv),
	}
}

// KubeletArgv is how this node starts our kubelet.
func (h *Host) KubeletArgv() []string {
	return []string{
		h.cluster.Binary("kubelet"),
		"--hostname-override=" + h.Name,
		"--kubeconfig=" + h.PKI("kubelet.kubeconfig"),
		"--node-ip=" + h.cluster.both(h.Addr.String(), h.addr6()),
		"--root-dir=" + h.Dir("kubelet"),
		"--cert-dir=" + h.PKI(""),
		"--docker-endpoint=unix://" + h.kubeletSocket(),
		"--pod-infra-container-image=" + PauseImage,
		"--cgroup-root=/" + h.cgroup(),
		"--cluster-dns=" + DNSAddress,
		"--cluster-domain=" + DNSDomain,
		"--resolv-conf=" + h.Dir("resolv.conf"),
		"--client-ca-file=" + h.PKI("ca.crt"),
		"--tls-cert-file=" + h.PKI("kubelet-server.crt"),
		"--tls-private-key-file=" + h.PKI("kubelet-server.key"),
		"--pod-manifest-path=" + h.Dir("manifests"),
		"--pod-logs-dir=" + h.Dir("log", "pods"),
		"--network-mode=" + h.cluster.NetworkMode,
		"--cni-conf-dir=" + h.Dir("cni"),
		"--cni-bin-dir=" + cniPlugins,
		"--cluster-cidr=" + h.cluster.both(PodCIDR, podCIDR6),
		"--eviction-hard=", // the machine's disk and memory are not the host's: they must evict no pod
		"--image-gc-high-threshold=100",
		"--v=2",
	}
}

// ProxyArgv is how this node starts our proxy.
func (h *Host) ProxyArgv() []string {
	return []string{
		h.cluster.Binary("proxy"),
		"--kubeconfig=" + h.PKI("proxy.kubeconfig"),
		"--hostname-override=" + h.Name,
		"--bind-address=" + h.Addr.String(),
		"--healthz-bind-address=127.0.0.1:10256",
		"--metrics-bind-address=127.0.0.1:10249",
		"--cluster-cidr=" + h.cluster.both(PodCIDR, podCIDR6),
		"--network-mode=" + h.cluster.proxyMode(),
		"--v=2",
	}
}

// EngineSocket is where the host's Docker engine listens.
func (h *Host) EngineSocket() string { return h.RunDir("docker.sock") }

// kubeletSocket is the kubelet's socket of an engine: the host's own, or the proxy that EngineAPI selects.
func (h *Host) kubeletSocket() string {
	if h.cluster.EngineAPI == "" {
		return h.EngineSocket()
	}
	return h.RunDir("engineproxy.sock")
}

func (h *Host) engineProxyArgv() []string {
	return []string{filepath.Join(h.cluster.Tools, "engineproxy"), "-api=" + h.cluster.EngineAPI,
		"-engine=unix://" + h.EngineSocket(), "-listen=unix://" + h.kubeletSocket()}
}

func (h *Host) containerdSocket() string { return h.RunDir("containerd.sock") }

// containerdArgv starts the host's containerd: without it the host's engine would use the machine's.
func (h *Host) containerdArgv() []string {
	return []string{system("containerd"), "--config", h.Dir("containerd.toml")}
}

func (h *Host) dockerdArgv() []string {
	return []string{system("dockerd"), "--config-file=" + h.Dir("dockerd.json"), "--live-restore=" + strconv.FormatBool(h.LiveRestore)}
}

// RuntimeHandler is a runtime of every node's engine beside the default one, under the name that upstream's tests look for.
const RuntimeHandler = "test-handler"

// writeEngineFiles writes the configuration of containerd and dockerd. Everything that either would look for or leave elsewhere on
// the machine is named.
func (h *Host) writeEngineFiles(ctx context.Context) error {
	containerd := fmt.Sprintf(`version = 2
root = %q
state = %q
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
`, h.Dir("containerd"), h.RunDir("containerd"), h.containerdSocket())
	if err := os.WriteFile(h.Dir("containerd.toml"), []byte(containerd), 0o644); err != nil {
		return err
	}
	settings := map[string]any{
		"data-root":        h.Dir("docker"),
		"exec-root":        h.RunDir("docker"),
		"pidfile":          h.RunDir("docker.pid"),
		"hosts":            []string{"unix://" + h.EngineSocket()},
		"containerd":       h.containerdSocket(),
		"cgroup-parent":    "/" + h.cgroup(),
		"exec-opts":        []string{"native.cgroupdriver=cgroupfs"}, // also where systemd runs, whose driver would need slices
		"bip":              fmt.Sprintf("192.168.%d.1/24", 100+h.number),
		"shutdown-timeout": 15,
		// Of the same version as the dockerd that PATH has first.
		"userland-proxy-path": system("docker-proxy"),
		"runtimes":            map[string]any{RuntimeHandler: map[string]string{"path": system("runc")}},
	}
	if version, err := run(ctx, "dockerd", "--version"); err == nil && strings.HasPrefix(version, "Docker version 20.") {
		settings["deprecated-key-path"] = h.Dir("docker-key.json") // else in /etc/docker; later engines have no such key
	}
	dockerd, err := json.MarshalIndent(settings, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(h.Dir("dockerd.json"), dockerd, 0o644)
}

// upEngines starts containerd and dockerd on every node.
func (c *Cluster) upEngines(ctx context.Context) error { return c.upEnginesOf(ctx, c.Nodes) }

func (c *Cluster) upEnginesOf(ctx context.Context, hosts []*Host) error {
	for _, node := range hosts {
		if err := node.writeEngineFiles(ctx); err != nil {
			return err
		}
		if err := node.Process("containerd").Ensure(ctx); err != nil {
			return err
		}
	}
	for _, node := range hosts {
		if err := node.Process("containerd").await(ctx, 20*time.Second, func(context.Context) error {
			_, err := os.Stat(node.containerdSocket())
			return err
		}); err != nil {
			return err
		}
		if err := node.Process("dockerd").Ensure(ctx); err != nil {
			return err
		}
	}
	for _, node := range hosts {
		if err := node.WaitEngine(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WaitEngine waits until the host's engine answers.
func (h *Host) WaitEngine(ctx context.Context) error {
	return h.Process("dockerd").await(ctx, time.Minute, h.Engine().Ping)
}

// upAgents starts kubelet and proxy on every node; static pods' manifests are in place before the kubelet looks.
func (c *Cluster) upAgents(ctx context.Context) error {
	for _, node := range c.Nodes {
		for _, name := range []string{"engineproxy", "kubelet", "proxy"} {
			if err := node.Process(name).Ensure(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeReady returns nil if the node is Ready, otherwise the reason.
func nodeReady(node *v1.Node) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1.NodeReady {
			if condition.Status == v1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s is not Ready: %s: %s", node.Name, condition.Reason, strings.TrimSpace(condition.Message))
		}
	}
	return fmt.Errorf("node %s has no condition Ready yet", node.Name)
}
