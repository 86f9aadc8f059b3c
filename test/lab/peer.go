package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// The peer is a third host that runs upstream's kubelet with containerd, the alternative for users without Docker, so
// that both can be measured in one run. Up does not start it; its taint repels all pods that are not bound to it by
// name.

var peerKubelet = tool{
	module:   "kubernetes",
	packages: []string{"k8s.io/kubernetes/cmd/kubelet"},
	names:    []string{"upstream-kubelet"},
	ldflags:  tools()[0].ldflags,
}

func (c *Cluster) newPeer() *Host {
	peer := c.newHost("peer", netip.MustParseAddr("172.30.0.20"))
	peer.processes = []*Process{
		{Name: "containerd", host: peer, argv: peer.containerdArgv},
		{Name: "dockerd", host: peer, argv: peer.dockerdArgv, unwanted: func() bool { return !peer.moved }},
		{Name: "kubelet", host: peer, argv: func() []string {
			if peer.moved {
				return peer.KubeletArgv()
			}
			return peer.peerKubeletArgv()
		}},
		peer.csiProcess(),
	}
	return peer
}

// machines returns every possible host, including a third node, the peer, the joiner and the Windows hosts.
func (c *Cluster) machines() []*Host {
	return slices.Concat(c.Hosts(), c.spare, []*Host{c.Peer, c.Joiner}, c.Windows)
}

// UpPeer joins the peer to the running cluster and returns when it is Ready.
func (c *Cluster) UpPeer(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	return c.run(ctx, []step{
		{"peer: packages", c.installPlugins},
		{"peer: build upstream's kubelet", func(ctx context.Context) error { return c.buildTool(ctx, peerKubelet) }},
		{"peer: host", c.upPeerHost},
		{"peer: containerd and images", c.upPeerEngine},
		{"peer: kubelet ready", c.upPeerKubelet},
	})
}

// DownPeer stops the peer's programs and containers and deletes its Node. Down removes the rest.
func (c *Cluster) DownPeer(ctx context.Context) error {
	var errs []error
	for _, process := range []string{"csidriver", "kubelet", "dockerd", "containerd"} {
		errs = append(errs, c.Peer.Process(process).Kill9(ctx))
	}
	c.Peer.moved = false
	errs = append(errs, wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		pids := cgroupProcesses(c.Peer.cgroup())
		killAll(pids)
		return len(pids) == 0, nil
	}))
	errs = append(errs, c.Peer.dropNamespaces(ctx))
	if client, err := c.Client(); err != nil {
		errs = append(errs, err)
	} else if err := client.CoreV1().Nodes().Delete(ctx, c.Peer.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// EndPeerPods stops upstream's kubelet on the peer and then its containers. What it has mounted stays.
func (c *Cluster) EndPeerPods(ctx context.Context) error {
	if err := c.Peer.Process("kubelet").Stop(ctx); err != nil {
		return err
	}
	ctr := c.peerContainerd()
	for _, kind := range []string{"tasks", "containers"} {
		out, err := run(ctx, append(ctr, kind, "ls", "-q")...)
		if err != nil {
			return err
		}
		for id := range strings.FieldsSeq(out) {
			argv := append(ctr, "tasks", "kill", "--signal", "SIGKILL", id)
			if kind == "containers" {
				argv = append(ctr, kind, "rm", id)
			}
			if _, err := run(ctx, argv...); err != nil {
				return err
			}
		}
		if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			out, err := run(ctx, append(ctr, "tasks", "ls", "-q")...)
			return strings.TrimSpace(out) == "", err
		}); err != nil {
			return fmt.Errorf("containers of the peer's containerd do not end: %w", err)
		}
	}
	return nil
}

// MovePeer starts Docker and our kubelet on the peer, with the same directory, credentials and name as upstream's, which EndPeerPods has stopped.
func (c *Cluster) MovePeer(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	c.Peer.moved = true
	return c.run(ctx, []step{
		{"peer: Docker", func(ctx context.Context) error {
			if err := c.Peer.writeDockerFile(ctx); err != nil {
				return err
			}
			if err := c.Peer.Process("dockerd").Ensure(ctx); err != nil {
				return err
			}
			return c.Peer.WaitEngine(ctx)
		}},
		{"peer: images", func(ctx context.Context) error { return c.upImagesOf(ctx, []*Host{c.Peer}) }},
		{"peer: our kubelet", c.upPeerKubelet},
	})
}

// EndMovedPods stops our kubelet on the peer and removes its containers from Docker. What it has mounted stays.
func (c *Cluster) EndMovedPods(ctx context.Context) error {
	if err := c.Peer.Process("kubelet").Stop(ctx); err != nil {
		return err
	}
	engine := c.Peer.Engine()
	list, err := engine.Containers(ctx)
	for _, one := range list {
		err = errors.Join(err, engine.Remove(ctx, one.ID))
	}
	return err
}

// ReturnPeer starts upstream's kubelet again, after EndMovedPods.
func (c *Cluster) ReturnPeer(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	c.Peer.moved = false
	return c.run(ctx, []step{
		{"peer: Docker ends", c.Peer.Process("dockerd").Stop},
		{"peer: upstream's kubelet", c.upPeerKubelet},
	})
}

// peerContainerd begins a command for the containers of the peer's kubelet.
func (c *Cluster) peerContainerd() []string {
	return slices.Clip([]string{c.program("ctr"), "--address=" + c.Peer.containerdSocket(), "--namespace=k8s.io"})
}

func (c *Cluster) upPeerHost(ctx context.Context) error {
	if err := c.upHost(ctx, c.Peer); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"containerd.toml":       c.Peer.peerContainerd(),
		"cni/10-bench.conflist": peerNetwork,
		"kubelet.yaml":          c.Peer.peerConfig(),
	} {
		path := c.Peer.Dir(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// peerNetwork is a bridge without masquerade: the simplest network, which does not slow the peer down.
const peerNetwork = `{"cniVersion": "0.4.0", "name": "bench", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

func (h *Host) peerContainerd() string {
	return fmt.Sprintf(`version = 2
root = %q
state = %q
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/%s"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = %q
  conf_dir = %q
`, h.Dir("containerd"), h.RunDir("containerd"), h.containerdSocket(), PauseImage, cniPlugins, h.Dir("cni"))
}

// peerConfig is upstream's default as far as it works on this machine: cgroup v1 and swap allowed, nothing reserved, no
// eviction.
func (h *Host) peerConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: /%s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%s
authentication: {x509: {clientCAFile: %s}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
clusterDNS: [%s]
clusterDomain: %s
resolvConf: %s
podLogsDir: %s
volumePluginDir: %s
enforceNodeAllocatable: [pods]
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
maxPods: 200
serializeImagePulls: false
registerWithTaints: [{key: winkube.dev/peer, value: upstream, effect: NoSchedule}]
`, h.cgroup(), h.containerdSocket(), h.PKI("ca.crt"), h.PKI("kubelet-server.crt"), h.PKI("kubelet-server.key"), DNSAddress, DNSDomain,
		h.Dir("resolv.conf"), h.Dir("log"), h.Dir("plugins"))
}

func (h *Host) peerKubeletArgv() []string {
	return []string{
		filepath.Join(h.cluster.Tools, peerKubelet.names[0]),
		"--config=" + h.Dir("kubelet.yaml"),
		"--kubeconfig=" + h.PKI("kubelet.kubeconfig"),
		"--hostname-override=" + h.Name,
		"--node-ip=" + h.Addr.String(),
		"--root-dir=" + h.Dir("kubelet"),
		"--cert-dir=" + h.PKI(""),
		"--v=1",
	}
}

func (c *Cluster) upPeerEngine(ctx context.Context) error {
	containerd := c.Peer.Process("containerd")
	if err := containerd.Ensure(ctx); err != nil {
		return err
	}
	ctr := c.peerContainerd()
	if err := containerd.await(ctx, 2*time.Minute, func(ctx context.Context) error {
		_, err := run(ctx, append(ctr, "version")...)
		return err
	}); err != nil {
		return err
	}
	for _, img := range images() {
		archive, err := c.archive(img)
		if err != nil {
			return err
		}
		_, err = run(ctx, append(ctr, "images", "import", archive)...)
		if err = errors.Join(err, os.Remove(archive)); err != nil {
			return err
		}
	}
	return nil
}

// archive writes an image in the format of `docker save`.
func (c *Cluster) archive(img image) (path string, err error) {
	layer, config, err := img.parts(c.Tools)
	if err != nil {
		return "", err
	}
	path = c.Peer.Dir(img.program + ".tar")
	return path, img.write(path, layer, config)
}

func (c *Cluster) upPeerKubelet(ctx context.Context) error {
	kubelet := c.Peer.Process("kubelet")
	if err := kubelet.Ensure(ctx); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return kubelet.await(ctx, 5*time.Minute, func(ctx context.Context) error {
		if err := kubelet.Ensure(ctx); err != nil { // it exits if containerd's CRI is not ready yet
			return err
		}
		node, err := client.CoreV1().Nodes().Get(ctx, c.Peer.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return nodeReady(node)
	})
}
