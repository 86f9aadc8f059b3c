package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// cniPlugins is Debian's plugin directory.
const cniPlugins = "/usr/lib/cni"

// cniMode is the NetworkMode in which CNI plugins create pod networks.
const cniMode = "cni"

// proxyMode returns the --network-mode of proxies: Debian's plugins only know their own node, so the proxy manages the
// routes.
func (c *Cluster) proxyMode() string {
	if c.NetworkMode == cniMode {
		return "host-gateway"
	}
	return c.NetworkMode
}

// keepNetwork rejects a NetworkMode or DualStack that differs from the running cluster's: its pods would keep addresses
// on another bridge with the same range. Down removes the record.
func (c *Cluster) keepNetwork(context.Context) error {
	want := fmt.Sprintf("CNI plugins %t, DUAL_STACK %t", c.NetworkMode == cniMode, c.DualStack)
	path := filepath.Join(runDir, "network")
	if have, err := os.ReadFile(path); err == nil && string(have) != want {
		return fmt.Errorf("the cluster runs with %s, want %s: run make down, then try again", have, want)
	}
	return os.WriteFile(path, []byte(want), 0o644)
}

// ensurePlugins installs the packages that NetworkMode needs.
func (c *Cluster) ensurePlugins(ctx context.Context) error {
	if c.NetworkMode != cniMode {
		return nil
	}
	return c.installPlugins(ctx)
}

func (c *Cluster) installPlugins(ctx context.Context) error {
	if _, err := os.Stat(cniPlugins); err == nil {
		return nil
	}
	return c.logged(ctx, "packages", c.Root, nil, "hack/ensure-packages.sh", "cni")
}

// NetworkConf is the CNI configuration file of a node.
func (h *Host) NetworkConf() string { return h.Dir("cni", "10-lab.conflist") }

// upNetworks configures the plugins of each node as soon as its Node has pod ranges, as a network's DaemonSet would.
func (c *Cluster) upNetworks(ctx context.Context) error {
	if c.NetworkMode != cniMode {
		return nil
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, host := range c.Nodes {
		if err := host.upNetwork(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

// upNetwork configures the host's plugins when its Node has pod ranges.
func (h *Host) upNetwork(ctx context.Context, client kubernetes.Interface) error {
	var ranges []string
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, h.Name, metav1.GetOptions{})
		if err == nil {
			ranges = node.Spec.PodCIDRs
		}
		return len(ranges) > 0, nil
	})
	if err != nil {
		return fmt.Errorf("node %s has no pod CIDR yet: %w", h.Name, err)
	}
	return h.writeNetwork(ranges)
}

// writeNetwork writes a configuration with a bridge, one range per family, and hostPorts. Each node has its own plugin
// state; by default all nodes would share the machine's.
func (h *Host) writeNetwork(ranges []string) error {
	var subnets, routes []string
	for _, r := range ranges {
		subnets = append(subnets, fmt.Sprintf(`[{"subnet": %q}]`, r))
		all := "0.0.0.0/0"
		if strings.Contains(r, ":") {
			all = "::/0"
		}
		routes = append(routes, fmt.Sprintf(`{"dst": %q}`, all))
	}
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [%s], "routes": [%s]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, cmp.Or(h.cniVersion, "1.0.0"), h.Leases(), strings.Join(subnets, ", "), strings.Join(routes, ", "))
	path := h.NetworkConf()
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// Leases is the directory in which the node's plugins record each container's address: one file per address in "lab".
func (h *Host) Leases() string { return h.Dir("cni-leases") }

// dropNamespaces unmounts the network namespaces that containerd created for pods.
func (h *Host) dropNamespaces(ctx context.Context) error {
	var errs []error
	for _, m := range slices.Backward(readMounts()) {
		if m.kind == "nsfs" && strings.HasPrefix(m.point, h.RunDir()+"/") {
			_, err := run(ctx, "umount", m.point)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
