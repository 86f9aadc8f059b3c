package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
		node.csiProcess(),
		{Name: "csi-node", host: node, argv: node.storageNodeArgv, unwanted: c.withoutStorage},
	}
}

// KubeletArgv returns the command line of the node's kubelet.
func (h *Host) KubeletArgv() []string {
	argv := []string{
		h.cluster.Binary("kubelet"),
		"--hostname-override=" + h.Name,
		"--kubeconfig=" + h.PKI("kubelet.kubeconfig"),
		"--node-ip=" + h.cluster.both(h.Addr.String(), h.addr6()),
		"--root-dir=" + h.KubeletDir(),
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
		"--volume-plugin-dir=" + h.Dir("plugins"),
		"--network-mode=" + h.cluster.NetworkMode,
		"--cni-conf-dir=" + h.Dir("cni"),
		"--cni-bin-dir=" + cniPlugins,
		"--cluster-cidr=" + h.cluster.both(PodCIDR, podCIDR6),
		"--eviction-hard=", // the machine's disk and memory are not the host's: they must not cause evictions
		"--image-gc-high-threshold=100",
		"--v=2",
	}
	if h.cluster.PodInterfaces != "" {
		argv = append(argv, "--pod-interfaces="+h.cluster.PodInterfaces)
	}
	return argv
}

// proxyLacks start the proxy on a host where the kernel cannot decide for clients when they connect, by what is missing. Each
// ends by executing its arguments, so that the process stays the one that was started.
var proxyLacks = map[string][]string{
	"cgroup2": {"unshare", "--mount", "--propagation=private", "sh", "-ec", `findmnt --noheadings --list --types cgroup2 --output TARGET | while read -r at; do umount --lazy "$at"; done; exec "$@"`, "sh"},
	"bpffs":   {"unshare", "--mount", "--propagation=private", "sh", "-ec", `mount -t bpf bpffs /sys/fs/bpf; mount -o remount,ro /sys/fs/bpf; exec "$@"`, "sh"},
	"rights":  {"setpriv", "--bounding-set=-bpf,-sys_admin,-perfmon"},
}

// CheckProxyLacks checks a value of PROXY_LACKS beside one of PROXY_MODE.
func CheckProxyLacks(lacks, mode string) error {
	switch _, known := proxyLacks[lacks]; {
	case lacks == "":
		return nil
	case !known:
		return fmt.Errorf("PROXY_LACKS: got %q, want one of %s, or nothing", lacks, strings.Join(slices.Sorted(maps.Keys(proxyLacks)), ", "))
	case mode != "auto" && mode != "connect":
		return fmt.Errorf("PROXY_LACKS=%s needs PROXY_MODE=auto or connect, got %q: others always relay", lacks, mode)
	}
	return nil
}

// ProxyArgv returns the command line of the node's proxy.
func (h *Host) ProxyArgv() []string {
	argv := append(slices.Clone(proxyLacks[h.cluster.ProxyLacks]),
		h.cluster.Binary("proxy"),
		"--kubeconfig="+h.PKI("proxy.kubeconfig"),
		"--hostname-override="+h.Name,
		"--bind-address="+h.Addr.String(),
		"--healthz-bind-address=127.0.0.1:10256",
		"--metrics-bind-address=127.0.0.1:10249",
		"--cluster-cidr="+h.cluster.both(PodCIDR, podCIDR6),
		"--network-mode="+h.cluster.proxyMode(),
		"--connect-cgroup="+h.connectCgroup(), // two nodes on one machine must not redirect each other's pods
		"--v=2",
	)
	if h.cluster.ProxyMode != "" {
		argv = append(argv, "--proxy-mode="+h.cluster.ProxyMode)
	}
	return argv
}

// CSIDriverName is the name of the driver (package csidriver) on every node that has CSIDriver set.
const CSIDriverName = "dir.winkube.test"

// CSIData is the directory with the driver's volumes on this node, its log of calls, and the files with which a test
// makes calls fail.
func (h *Host) CSIData() string { return h.Dir("csi-data") }

// CSISocket is the driver's socket. It also registers by CSIRegistration.
func (h *Host) CSISocket() string { return h.KubeletDir("plugins", CSIDriverName, "csi.sock") }

// CSIRegistration is the socket by which the driver registers with the kubelet.
func (h *Host) CSIRegistration() string {
	return h.KubeletDir("plugins_registry", CSIDriverName+"-reg.sock")
}

// csiProcess is the driver on a node or the peer.
func (h *Host) csiProcess() *Process {
	return &Process{Name: "csidriver", host: h, argv: h.csiDriverArgv, unwanted: func() bool { return !h.CSIDriver }}
}

// csiDriverArgv starts the driver next to the kubelet, with the sockets that a DaemonSet's pod would use.
func (h *Host) csiDriverArgv() []string {
	return []string{filepath.Join(h.cluster.Tools, "csidriver"), "--name=" + CSIDriverName, "--node-id=" + h.Name, "--data=" + h.CSIData(),
		"--endpoint=" + h.CSISocket(), "--registry=" + h.KubeletDir("plugins_registry")}
}

// EngineSocket is the socket of the host's Docker engine.
func (h *Host) EngineSocket() string { return h.RunDir("docker.sock") }

// kubeletSocket is the kubelet's engine socket: the host's own, or the proxy's if EngineAPI is set.
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

// containerdArgv starts a containerd of the host; otherwise the host's engine would use the machine's.
func (h *Host) containerdArgv() []string {
	return []string{h.program("containerd"), "--config", h.Dir("containerd.toml")}
}

func (h *Host) dockerdArgv() []string {
	return []string{h.program("dockerd"), "--config-file=" + h.Dir("dockerd.json"), "--live-restore=" + strconv.FormatBool(h.LiveRestore)}
}

// containerdConfig disables plugins that would write elsewhere on the machine, and the CRI plugins, which dockerd does
// not use. containerd 2 split and added some plugins, but still reads the older format.
func (h *Host) containerdConfig() string {
	version, disabled := 2, []string{"io.containerd.grpc.v1.cri"}
	for _, name := range []string{"aufs", "btrfs", "devmapper", "zfs"} {
		disabled = append(disabled, "io.containerd.snapshotter.v1."+name)
	}
	disabled = append(disabled, "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing")
	if h.containerd2() {
		version = 3
		disabled = append(disabled, "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri")
	}
	names, _ := json.Marshal(disabled) // a list of strings cannot fail
	return fmt.Sprintf("version = %d\nroot = %q\nstate = %q\noom_score = 0\ndisabled_plugins = %s\n[grpc]\n  address = %q\n",
		version, h.engineDir("containerd"), h.RunDir("containerd"), names, h.containerdSocket())
}

// RuntimeHandler is a second runtime of every node's engine, under the name that upstream's tests use.
const RuntimeHandler = "test-handler"

// writeEngineFiles writes the configurations of containerd and dockerd. They name every path that either would
// otherwise use elsewhere on the machine.
func (h *Host) writeEngineFiles(ctx context.Context) error {
	if err := os.WriteFile(h.Dir("containerd.toml"), []byte(h.containerdConfig()), 0o644); err != nil {
		return err
	}
	return h.writeDockerFile(ctx)
}

// writeDockerFile writes the configuration of dockerd alone.
func (h *Host) writeDockerFile(ctx context.Context) error {
	settings := map[string]any{
		"data-root":        h.engineDir("docker"),
		"exec-root":        h.RunDir("docker"),
		"pidfile":          h.RunDir("docker.pid"),
		"hosts":            []string{"unix://" + h.EngineSocket()},
		"containerd":       h.containerdSocket(),
		"cgroup-parent":    "/" + h.cgroup(),
		"exec-opts":        []string{"native.cgroupdriver=cgroupfs"}, // also with systemd, whose driver would need slices
		"bip":              fmt.Sprintf("192.168.%d.1/24", 100+h.number),
		"shutdown-timeout": 15,
		// The same version as dockerd.
		"userland-proxy-path": h.program("docker-proxy"),
	}
	runtimes, err := h.runtimes()
	if err != nil {
		return err
	}
	maps.Copy(settings, runtimes)
	if r := h.cluster.release(); r != nil && r.graph && h.engine == "" { // engine 29 would select containerd's store
		settings["storage-driver"] = "overlay2"
		settings["features"] = map[string]bool{"containerd-snapshotter": false}
	}
	if r := h.cluster.release(); r != nil && r.nftables && h.engine == "" {
		settings["firewall-backend"] = "nftables"
	}
	if version, err := run(ctx, h.program("dockerd"), "--version"); err == nil && strings.HasPrefix(version, "Docker version 20.") {
		settings["deprecated-key-path"] = h.Dir("docker-key.json") // otherwise in /etc/docker; later engines have no such key
	}
	maps.Copy(settings, h.moreSettings)
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
		if r := c.release(); r != nil && r.nftables { // it does not switch on forwarding, and does not start without
			if _, err := node.Exec(ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"); err != nil {
				return err
			}
		}
		if err := node.Process("containerd").Ensure(ctx); err != nil {
			return err
		}
	}
	for _, node := range hosts {
		if err := node.Process("containerd").await(ctx, 2*time.Minute, func(context.Context) error {
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

// WaitEngine waits until the host's engine responds.
func (h *Host) WaitEngine(ctx context.Context) error {
	return h.Process("dockerd").await(ctx, 5*time.Minute, h.Engine().Ping)
}

// upAgents starts kubelet and proxy on every node; static pods' manifests exist before the kubelet starts.
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
