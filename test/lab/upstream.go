package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The joiner can run upstream's kubelet with cri-dockerd on its Docker instead of ours, as nodes did that now change to ours. Pods get their network from Debian's CNI plugins.

var criDockerd = tool{module: "cri-dockerd", packages: []string{"github.com/Mirantis/cri-dockerd"}, names: []string{"cri-dockerd"}, ldflags: "-s -w"}

// patchesDir has what the kubelet of a simulated host needs beyond kubeadm's configuration.
const patchesDir = "/etc/kubernetes-patches"

// InstallCRIDockerd installs upstream's kubelet with kubeadm's drop-in, and cri-dockerd, on the third host, which has no other units. It starts cri-dockerd.
func (c *Cluster) InstallCRIDockerd(ctx context.Context) error {
	if err := errors.Join(c.installPlugins(ctx), c.buildTool(ctx, peerKubelet), c.buildTool(ctx, criDockerd)); err != nil {
		return err
	}
	j := c.Joiner
	if err := j.linkKubelet(filepath.Join(c.Tools, peerKubelet.names[0])); err != nil {
		return err
	}
	dropIn, err := os.ReadFile(filepath.Join(c.Root, "build/systemd/kubelet.service.d/10-kubeadm.conf"))
	if err != nil {
		return err
	}
	files := map[string]string{
		"systemd/system/kubelet.service":                         "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=" + j.linkedKubelet() + "\n",
		"systemd/system/kubelet.service.d/10-kubeadm.conf":       strings.ReplaceAll(string(dropIn), "/usr/bin/kubelet", j.linkedKubelet()),
		"systemd/system/cri-docker.service":                      "[Service]\nExecStart=" + strings.Join(j.criDockerdArgv(), " ") + "\n",
		"default/kubelet":                                        "KUBELET_EXTRA_ARGS=\"--node-ip=" + j.Addr.String() + "\"\n",
		filepath.Base(patchesDir) + "/kubeletconfiguration.yaml": j.upstreamPatch(),
	}
	if err := j.writeFiles(files); err != nil {
		return err
	}
	if err := errors.Join(j.allowScores(ctx), j.start(ctx, "kubelet-cri", "cri-docker")); err != nil {
		return err
	}
	return j.awaitCRISocket(ctx)
}

// RemoveUpstream stops and removes what InstallCRIDockerd has installed, but not what these programs have written.
func (c *Cluster) RemoveUpstream(ctx context.Context) error {
	_, err := c.Joiner.Shell(ctx, `for unit in kubelet cri-docker; do systemctl stop $unit 2>/dev/null || true; done
cd /etc && rm -rf systemd/system/kubelet.service systemd/system/kubelet.service.d systemd/system/cri-docker.service default/kubelet `+patchesDir+` `+c.Joiner.linkedKubelet()+` `+c.Joiner.NetworkConf())
	return err
}

// NetworkOfJoiner configures the third host's plugins with the pod ranges of its Node, as a network's DaemonSet would. Docker drops what the host forwards; such a
// DaemonSet, or kube-proxy, admits the pods' packets.
func (c *Cluster) NetworkOfJoiner(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	if _, err := c.Joiner.Exec(ctx, "iptables", "-P", "FORWARD", "ACCEPT"); err != nil {
		return err
	}
	return c.Joiner.upNetwork(ctx, client)
}

// allowScores gives the engine a runtime that starts containers with an OOM score below 0 although the machine does not allow that. cri-dockerd insists on such a score for
// sandboxes; our kubelet does without.
func (h *Host) allowScores(ctx context.Context) error {
	path := h.Dir("root/bin/runc-scores")
	script := `#!/bin/sh
for word; do
	[ "$last" != --bundle ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
	last=$word
done
exec ` + system(h.program("runc")) + ` "$@"
`
	if h.moreSettings != nil {
		return nil
	}
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return err
	}
	if err := h.ConfigureEngine(ctx, map[string]any{"runtimes": map[string]any{"scores": map[string]string{"path": path}}, "default-runtime": "scores"}); err != nil {
		return err
	}
	if err := h.Process("dockerd").Restart(ctx); err != nil {
		return err
	}
	return h.WaitEngine(ctx)
}

// start replaces one unit of the third host by another.
func (h *Host) start(ctx context.Context, instead, unit string) error {
	_, err := h.Shell(ctx, "systemctl stop "+instead+" && rm -f /var/run/cri-dockerd.sock && systemctl start "+unit)
	return err
}

// linkedKubelet is upstream's kubelet by the name that the package has.
func (h *Host) linkedKubelet() string { return h.Dir("root/bin/kubelet") }

func (h *Host) linkKubelet(program string) error {
	if err := os.Remove(h.linkedKubelet()); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.Symlink(program, h.linkedKubelet())
}

// writeFiles writes files below the third host's /etc.
func (h *Host) writeFiles(files map[string]string) error {
	for name, text := range files {
		path := h.Dir("root/etc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// PluginFlags are the flags of cri-dockerd and our kubelet for the third host's CNI plugins.
func (c *Cluster) PluginFlags() []string {
	return []string{"--cni-conf-dir=" + filepath.Dir(c.Joiner.NetworkConf()), "--cni-bin-dir=" + cniPlugins}
}

func (h *Host) criDockerdArgv() []string {
	return append([]string{filepath.Join(h.cluster.Tools, criDockerd.names[0]), "--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock", h.engineFlags(), "--network-plugin=cni"}, h.cluster.PluginFlags()...)
}

// upstreamPatch is what peerConfig has for the machine.
func (h *Host) upstreamPatch() string {
	return fmt.Sprintf(`cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: %s
volumePluginDir: %s
`, h.cgroup(), h.Dir("resolv.conf"), h.Dir("plugins"))
}

// UpstreamJoinFlags are the flags of kubeadm join that the simulated host needs for upstream's kubelet.
func (c *Cluster) UpstreamJoinFlags() string {
	return "--ignore-preflight-errors=SystemVerification,Swap --patches=" + patchesDir
}
