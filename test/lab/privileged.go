package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// RuncPrivileged is the RUNTIME that starts privileged containers on a machine that cannot grant CAP_SYS_RESOURCE: with all other capabilities.
// The first node's kubelet then works in /var/lib/kubelet, where upstream's manifests expect it, on a mount that passes mounts on.
const RuncPrivileged = "runc-privileged"

const standardRoot = "/var/lib/kubelet"

// runcPrivileged runs runc. It removes CAP_SYS_RESOURCE from the capabilities of containers and of commands in them.
const runcPrivileged = `#!/bin/sh
for word; do
	case $last in
	--bundle | -b) file=$word/config.json ;;
	--process | -p) file=$word ;;
	esac
	last=$word
done
[ -z "$file" ] || sed -i 's/"CAP_SYS_RESOURCE", *//g; s/, *"CAP_SYS_RESOURCE"//g' "$file"
exec %s "$@"
`

// hasStandardRoot says whether the host's kubelet works in /var/lib/kubelet.
func (h *Host) hasStandardRoot() bool {
	return h.cluster.Runtime == RuncPrivileged && h == h.cluster.Nodes[0]
}

// KubeletDir returns the path of a file in the kubelet's root directory.
func (h *Host) KubeletDir(elem ...string) string {
	root := h.Dir("kubelet")
	if h.hasStandardRoot() {
		root = standardRoot
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// upStandardRoot mounts the first node's directory at /var/lib/kubelet. Down undoes it.
func (c *Cluster) upStandardRoot(ctx context.Context) error {
	node := c.Nodes[0]
	if !node.hasStandardRoot() || c.mountsStandardRoot() {
		return nil
	}
	if entries, err := os.ReadDir(standardRoot); err == nil && len(entries) > 0 {
		return fmt.Errorf("RUNTIME=%s needs %s, which is in use on this machine: remove it if no kubelet needs it, or leave RUNTIME out", RuncPrivileged, standardRoot)
	}
	for _, dir := range []string{standardRoot, node.Dir("kubelet")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"--bind", node.Dir("kubelet"), standardRoot}, {"--make-private", standardRoot}, {"--make-shared", standardRoot}} {
		if _, err := run(ctx, append([]string{"mount"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// removeStandardRoot removes root unless it has files. Upstream's kubelet, the peer's, leaves its socket for device plugins there, whatever its --root-dir.
func removeStandardRoot(root string) {
	socket := filepath.Join(root, "device-plugins", "kubelet.sock")
	connection, err := net.Dial("unix", socket)
	if err == nil { // another kubelet serves there
		connection.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(socket)
	}
	_ = os.Remove(filepath.Dir(socket))
	_ = os.Remove(root)
}

// mountsStandardRoot says whether this cluster's directory is mounted at /var/lib/kubelet.
func (c *Cluster) mountsStandardRoot() bool {
	for _, m := range readMounts() {
		if m.point == standardRoot {
			return strings.HasSuffix(c.Nodes[0].Dir("kubelet"), m.root)
		}
	}
	return false
}
