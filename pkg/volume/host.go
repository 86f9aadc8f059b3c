package volume

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Host is this machine, as the Manager and the kinds of volumes use it. Everything in it is safe for concurrent use.
type Host struct {
	// Root is the agent's root directory (--root-dir), which exists, as an absolute path without links. Pods are below Root/pods.
	Root     string
	Platform pod.Platform
	Mounts   mount.Mounter
	Links    mount.Links // what drivers make on Windows instead of mounts
	Access   access.Control
}

// Open makes the root directory when it is missing and returns the Host.
func Open(root string, platform pod.Platform) (Host, error) {
	if err := os.MkdirAll(root, paths.DirMode); err != nil {
		return Host{}, fmt.Errorf("cannot make the root directory: %w", err)
	}
	// The kernel lists mounts by their real paths.
	real, err := filepath.EvalSymlinks(root)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return Host{}, fmt.Errorf("cannot resolve the root directory: %w", err)
	}
	h := Host{Root: real, Platform: platform, Mounts: mount.System(), Links: mount.SystemLinks(), Access: access.New(platform)}
	if platform.OS == "windows" {
		h.Mounts = mount.Linked{Links: h.Links}
	}
	return h, nil
}
