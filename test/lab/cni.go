package lab

import (
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
)

// cniPlugins is where Debian has them.
const cniPlugins = "/usr/lib/cni"

// cniMode is the NetworkMode in which plugins make each pod's network.
const cniMode = "cni"

// proxyMode is the --network-mode of proxies: Debian's plugins know only their node, so the proxy keeps the routes.
func (c *Cluster) proxyMode() string {
	if c.NetworkMode == cniMode {
		return "host-gateway"
	}
	return c.NetworkMode
}

// keepNetwork rejects a NetworkMode or DualStack that does not fit the pods of a running cluster: they would keep addresses on another bridge with
// the same range. Down removes its record.
func (c *Cluster) keepNetwork(context.Context) error {
	want := fmt.Sprintf("CNI plugins %t, DUAL_STACK %t", c.NetworkMode == cniMode, c.DualStack)
	path := filepath.Join(runDir, "network")
	if have, err := os.ReadFile(path); err == nil && string(have) != want {
		return fmt.Errorf("the cluster runs with %s, want %s: run make down, then try again", have, want)
	}
	return os.WriteFile(path, []byte(want), 0o644)
}

// ensurePlugins installs what NetworkMode needs.
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

// upNetworks configures the plugins of each node as soon as its Node has ranges: as the DaemonSet of a network would.
func (c *Cluster) upNetworks(ctx context.Context) error {
	if c.NetworkMode != cniMode {
		return nil
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, host := range c.Nodes {
		var ranges []string
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			node, err := client.CoreV1().Nodes().Get(ctx, host.Name, metav1.GetOptions{})
			if err == nil {
				ranges = node.Spec.PodCIDRs
			}
			return len(ranges) > 0, nil
		})
		if err != nil {
			return fmt.Errorf("node %s has no pod CIDR yet: %w", host.Name, err)
		}
		if err := host.writeNetwork(ranges); err != nil {
			return err
		}
	}
	return nil
}

// writeNetwork writes a bridge with addresses of ranges, one per family, and hostPorts. The plugins' own state is the node's: by default it would be
// the machine's, which all nodes share.
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
	text := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [%s], "routes": [%s]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, h.Leases(), strings.Join(subnets, ", "), strings.Join(routes, ", "))
	path := h.NetworkConf()
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// Leases is the directory in which the node's plugins record which container has which address: a file per address in "lab".
func (h *Host) Leases() string { return h.Dir("cni-leases") }

// dropNamespaces unmounts the network namespaces that containerd has made for pods.
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
