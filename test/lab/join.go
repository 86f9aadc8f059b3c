package lab

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// The joiner is another host, which kubeadm joins. It has separate mounts, shared with its engine: kubeadm's
// /etc/kubernetes and /var/lib/kubelet are not the machine's. Its systemctl is a script that does what our unit files
// say.

var kubeadm = tool{module: "kubeadm", packages: []string{"k8s.io/kubernetes/cmd/kubeadm"}, names: []string{"kubeadm"}, ldflags: tools()[0].ldflags}

//go:embed systemctl.sh
var systemctl []byte

// BootstrapToken is the token that UpJoiner creates in the cluster with kubeadm.
const BootstrapToken = "abcdef.0123456789abcdef"

func (c *Cluster) newJoiner() *Host {
	host := c.newHost("joiner", netip.MustParseAddr("172.30.0.16"))
	host.number = 8 // after the third node and the Windows hosts
	host.ownMounts = true
	host.processes = []*Process{
		{Name: "containerd", host: host, argv: host.containerdArgv},
		{Name: "dockerd", host: host, argv: host.dockerdArgv},
	}
	return host
}

// UpJoiner starts the third host with its engine and the service that kubeadm needs in a running cluster, and creates
// the objects of kubeadm init in the cluster. It joins nothing yet.
func (c *Cluster) UpJoiner(ctx context.Context) error {
	unlock, err := c.claim()
	if err != nil {
		return err
	}
	defer unlock()
	joiner := c.Joiner
	return c.run(ctx, []step{
		{"joiner: host", func(ctx context.Context) error {
			return errors.Join(c.upHost(ctx, joiner), joiner.upMounts(ctx))
		}},
		{"joiner: engine", func(ctx context.Context) error { return c.upEnginesOf(ctx, []*Host{joiner}) }},
		{"joiner: images", func(ctx context.Context) error { return c.upImagesOf(ctx, []*Host{joiner}) }},
		{"joiner: kubeadm's objects", c.UpKubeadm},
		{"joiner: kubelet cri", func(ctx context.Context) error {
			if _, err := joiner.Exec(ctx, joiner.shell("systemctl start kubelet-cri")...); err != nil {
				return err
			}
			return joiner.awaitCRISocket(ctx)
		}},
	})
}

// awaitCRISocket waits until someone listens where kubeadm looks for Docker.
func (h *Host) awaitCRISocket(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := h.Exec(ctx, "test", "-S", "/var/run/cri-dockerd.sock")
		return err == nil, nil
	})
}

// DownJoiner stops everything on the third host. Down removes the rest.
func (c *Cluster) DownJoiner(ctx context.Context) error {
	var errs []error
	for _, unit := range []string{"kubelet", "kubelet-cri"} {
		_, err := c.Joiner.Exec(ctx, c.Joiner.shell("systemctl stop "+unit)...)
		errs = append(errs, err)
	}
	for _, process := range []string{"dockerd", "containerd"} {
		errs = append(errs, c.Joiner.Process(process).Stop(ctx))
	}
	return errors.Join(errs...)
}

// mountsDir holds the file that keeps the host's mount namespace alive. It must not be on a shared mount.
func (h *Host) mountsDir() string { return h.RunDir("mounts") }

func (h *Host) mountsFile() string { return filepath.Join(h.mountsDir(), "ns") }

// upMounts creates the mount namespace: copies of /etc, and empty directories where kubeadm and kubelet write.
func (h *Host) upMounts(ctx context.Context) error {
	for _, m := range readMounts() {
		if m.point == h.mountsFile() {
			return nil
		}
	}
	root := h.Dir("root")
	if err := h.writeRoot(root); err != nil {
		return err
	}
	script := fmt.Sprintf(`set -e
mkdir -p %[1]s && mount --bind %[1]s %[1]s && mount --make-private %[1]s && touch %[2]s
unshare --mount=%[2]s --propagation=private sh -ec '
cp -a /etc/. %[3]s/etc/ 2>/dev/null || true
cp -a %[3]s/etc-ours/. %[3]s/etc/
mount -t tmpfs tmpfs %[3]s/run
mkdir -p %[3]s/run/netns %[3]s%[4]s
mount --rbind %[4]s %[3]s%[4]s
for dir in etc var/lib var/log run; do mount --rbind %[3]s/$dir /$dir; done'`, h.mountsDir(), h.mountsFile(), root, runDir)
	_, err := run(ctx, "sh", "-c", script)
	return err
}

// writeRoot writes our units and the host's settings, as an installer would.
func (h *Host) writeRoot(root string) error {
	for _, dir := range []string{"etc", "etc-ours/default", "var/lib", "var/log", "run", "bin"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	units := filepath.Join(h.cluster.Root, "build/systemd")
	for _, unit := range []string{"kubelet.service", "kubelet.service.d/10-kubeadm.conf", "kubelet-cri.service"} {
		text, err := os.ReadFile(filepath.Join(units, unit))
		if err != nil {
			return err
		}
		path := filepath.Join(root, "etc-ours/systemd/system", unit)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "/usr/bin/kubelet", h.cluster.Binary("kubelet"))), 0o644); err != nil {
			return err
		}
	}
	engine := h.engineFlags()
	kubelet := h.kubeletFlags() + " --node-ip=" + h.Addr.String()
	for name, line := range map[string]string{"kubelet": "KUBELET_EXTRA_ARGS=\"" + kubelet + "\"\n", "kubelet-cri": "KUBELET_CRI_ARGS=\"" + engine + " --v=2\"\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc-ours/default", name), []byte(line), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, "bin/systemctl"), systemctl, 0o755)
}

func (h *Host) engineFlags() string {
	return "--docker-endpoint=unix://" + h.EngineSocket() + " --pod-infra-container-image=" + PauseImage
}

func (h *Host) kubeletFlags() string {
	return h.engineFlags() + " --cgroup-root=/" + h.cgroup() + " --resolv-conf=" + h.Dir("resolv.conf") + " --cluster-cidr=" + PodCIDR + " --network-mode=" + h.cluster.NetworkMode + " --v=2"
}

// JoinerFlags returns the kubelet flags that the third host needs because it is simulated.
func (c *Cluster) JoinerFlags() string {
	return c.Joiner.kubeletFlags() + " --cluster-dns=" + DNSAddress + " --cluster-domain=" + DNSDomain + " --eviction-hard=memory.available<0%,nodefs.available<0%,imagefs.available<0% --image-gc-high-threshold=100"
}

// shell returns a command line with the host's own systemctl, kubelet and kubeadm in its PATH.
func (h *Host) shell(line string) []string {
	path := strings.Join([]string{h.Dir("root", "bin"), filepath.Dir(h.cluster.Binary("kubelet")), h.cluster.Tools, os.Getenv("PATH")}, ":")
	return []string{"env", "PATH=" + path, "sh", "-c", line}
}

// Shell runs a command line on the third host and returns its output.
func (h *Host) Shell(ctx context.Context, line string) (string, error) {
	return h.Exec(ctx, h.shell(line)...)
}

// JoinCommand returns what `kubeadm token create --print-join-command` would print for the cluster.
func (c *Cluster) JoinCommand() (string, error) {
	data, err := os.ReadFile(c.Control.PKI("ca.crt"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return "", errors.New("ca.crt holds no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return fmt.Sprintf("kubeadm join %s --token %s --discovery-token-ca-cert-hash sha256:%s", c.apiAddress(), BootstrapToken, hex.EncodeToString(sum[:])), nil
}

// kubeadmConfig returns a configuration as for kubeadm init. Kubelets request their serving certificates.
func (c *Cluster) kubeadmConfig() string {
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{token: %s, ttl: 24h0m0s, usages: [signing, authentication], groups: ["system:bootstrappers:kubeadm:default-node-token"]}]
nodeRegistration: {name: node1, criSocket: "unix:///var/run/cri-dockerd.sock"}
localAPIEndpoint: {advertiseAddress: %s}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v%s
controlPlaneEndpoint: %s
networking: {podSubnet: %s, serviceSubnet: %s, dnsDomain: %s}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
serverTLSBootstrap: true
clusterDNS: [%s]
evictionHard: {memory.available: 0%%, nodefs.available: 0%%, nodefs.inodesFree: 0%%, imagefs.available: 0%%, imagefs.inodesFree: 0%%}
imageGCHighThresholdPercent: 100
`, BootstrapToken, c.Control.Addr, kubernetesVersion, c.apiAddress(), PodCIDR, ServiceCIDR, DNSDomain, DNSAddress)
}

// KubeadmFlags returns the go build flags that give upstream's kubeadm its version.
func KubeadmFlags() string { return "-ldflags=" + kubeadm.ldflags }

// UpKubeadm builds kubeadm and runs its phases in a running cluster. They create the ConfigMaps kubeadm-config,
// kubelet-config and cluster-info, the token and the roles.
func (c *Cluster) UpKubeadm(ctx context.Context) error {
	if err := c.buildTool(ctx, kubeadm); err != nil {
		return err
	}
	path := c.Control.Dir("kubeadm.yaml")
	if err := os.WriteFile(path, []byte(c.kubeadmConfig()), 0o600); err != nil {
		return err
	}
	program := filepath.Join(c.Tools, "kubeadm")
	for _, phase := range [][]string{{"upload-config", "all"}, {"bootstrap-token", "--skip-token-print"}} {
		argv := append([]string{program, "init", "phase"}, phase...)
		if _, err := c.Control.Exec(ctx, append(argv, "--config="+path, "--kubeconfig="+c.Control.PKI("admin.kubeconfig"))...); err != nil {
			return err
		}
	}
	return nil
}
