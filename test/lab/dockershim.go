package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The joiner can run a kubelet of 1.23, the last version whose dockershim ran pods in Docker. Its module compiles with today's Go.

var dockershim = tool{
	module: "kubelet-1.23", packages: []string{"k8s.io/kubernetes/cmd/kubelet"}, names: []string{"kubelet"}, dir: "kubelet-1.23",
	ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=" + DockershimVersion + " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=23",
}

// DockershimVersion is the version of that kubelet.
const DockershimVersion = "v1.23.17"

// InstallDockershim installs and starts the kubelet of 1.23 on the third host, which has no other units. It joins by a bootstrap token.
func (c *Cluster) InstallDockershim(ctx context.Context) error {
	if err := errors.Join(c.installPlugins(ctx), c.buildTool(ctx, dockershim)); err != nil {
		return err
	}
	j := c.Joiner
	j.cniVersion = "0.4.0" // the newest that this kubelet knows
	if err := j.linkKubelet(filepath.Join(c.Tools, dockershim.dir, dockershim.names[0])); err != nil {
		return err
	}
	ca, err := os.ReadFile(c.Control.PKI("ca.crt"))
	if err != nil {
		return err
	}
	files := map[string]string{
		"systemd/system/kubelet.service":            "[Service]\nExecStart=" + strings.Join(j.dockershimArgv(), " ") + "\n",
		"kubernetes/pki/ca.crt":                     string(ca),
		"kubernetes/bootstrap-kubelet.conf":         c.bootstrapConfig(),
		filepath.Base(patchesDir) + "/kubelet.yaml": j.dockershimConfig(),
	}
	if err := j.writeFiles(files); err != nil {
		return err
	}
	return errors.Join(j.allowScores(ctx), j.start(ctx, "kubelet-cri", "kubelet"))
}

// bootstrapConfig is a kubeconfig with the bootstrap token, as kubeadm join writes it.
func (c *Cluster) bootstrapConfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: /etc/kubernetes/pki/ca.crt}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.apiAddress(), BootstrapToken)
}

func (h *Host) dockershimArgv() []string {
	return append([]string{h.linkedKubelet(), "--config=" + patchesDir + "/kubelet.yaml", "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf", "--kubeconfig=/etc/kubernetes/kubelet.conf",
		"--hostname-override=" + h.Name, "--node-ip=" + h.Addr.String(), "--container-runtime=docker", h.engineFlags(), "--pod-infra-container-image=" + PauseImage,
		"--network-plugin=cni"}, h.cluster.PluginFlags()...)
}

// dockershimConfig is peerConfig with what a kubelet of 1.23 knows.
func (h *Host) dockershimConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: /%s
cgroupDriver: cgroupfs
failSwapOn: false
authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
rotateCertificates: true
clusterDNS: [%s]
clusterDomain: %s
resolvConf: %s
volumePluginDir: %s
makeIPTablesUtilChains: false
featureGates: {LocalStorageCapacityIsolation: false}
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
`, h.cgroup(), DNSAddress, DNSDomain, h.Dir("resolv.conf"), h.Dir("plugins"))
}
