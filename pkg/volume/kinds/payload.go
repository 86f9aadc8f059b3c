package kinds

import (
	"context"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/atomic"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// payload is a kind whose content the agent writes and keeps up to date: configMap, secret, downwardAPI and projected. No container may write
// to it.
type payload struct {
	source
	host   *volume.Host
	writer atomic.Writer
	name   string
	memory bool // kept in memory where the host can, because it is secret
}

// source is where a payload comes from.
type source interface {
	// Has says whether v has this source.
	Has(v volume.Volume) bool
	// content is everything that v should hold now.
	content(ctx context.Context, v volume.Volume) (atomic.Content, error)
	// forget drops what is remembered of the pod.
	forget(left volume.Remains)
}

func (k *payload) Name() string { return k.name }

// Prepare brings the content up to date. A volume that has content keeps it when new content cannot be had (the API server is away, a Secret
// is deleted): a running pod goes on with what it has.
func (k *payload) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	path, err := v.Dir()
	if err != nil {
		return "", err
	}
	// What was there before counts only where it still is: a reboot empties a volume in memory.
	memory := k.memory && k.host.Platform.OS != "windows"
	had, err := k.writer.Has(path)
	if err == nil && had && memory {
		had, err = k.host.Mounts.IsMount(path)
	}
	if err != nil {
		return "", err
	}
	want, err := k.content(ctx, v)
	if err != nil {
		if had {
			klog.ErrorS(err, "Cannot read a volume's new content; the pod keeps what it has", "pod", klog.KObj(v.Pod), "volume", v.Spec.Name)
			return path, nil
		}
		return "", err
	}
	for name := range want {
		if err := atomic.CheckPath(k.host.Platform, name); err != nil {
			return "", err
		}
	}
	if err := paths.MakeDir(path, 0o755); err != nil {
		return "", fmt.Errorf("cannot make directory: %w", err)
	}
	if memory {
		if err := mount.Memory(k.host.Mounts, path, "mode=0755", true); err != nil {
			return "", err
		}
	}
	if err := k.host.Access.Protect(path, access.Read, access.Accounts(v.Pod)...); err != nil {
		return "", err
	}
	return path, k.writer.Write(path, want, k.host.Access.FSGroup(v.Pod))
}

func (k *payload) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	path, err := v.Dir()
	return volume.Mount{Path: path, ReadOnly: true}, err
}

func (k *payload) Usage(v volume.Volume) (disk.Place, bool, error) { return usageOf(k.host, v) }

func (k *payload) Clean(_ context.Context, left volume.Remains) error {
	k.forget(left)
	return nil
}

// usageOf is the place of a volume in its own directory.
func usageOf(host *volume.Host, v volume.Volume) (disk.Place, bool, error) {
	path, err := v.Dir()
	if err != nil {
		return disk.Place{}, false, err
	}
	own, err := host.Mounts.IsMount(path)
	return disk.Place{Path: path, Own: own}, true, err
}

// stateless is a source that remembers nothing.
type stateless struct{}

func (stateless) forget(volume.Remains) {}

// pick chooses which keys become which files: all under their own names, or those of items.
func pick(data map[string][]byte, items []v1.KeyToPath, defaultMode *int32, optional bool, what string) (atomic.Content, error) {
	out := atomic.Content{}
	if len(items) == 0 {
		for k, b := range data {
			out[k] = atomic.File{Data: b, Mode: modeOf(nil, defaultMode)}
		}
		return out, nil
	}
	for _, it := range items {
		b, ok := data[it.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("references non-existent %s: %s", what, it.Key)
		}
		out[it.Path] = atomic.File{Data: b, Mode: modeOf(it.Mode, defaultMode)}
	}
	return out, nil
}

// modeOf is a file's mode: its own, the volume's, or what the API would have filled in.
func modeOf(mode, defaultMode *int32) fs.FileMode {
	switch {
	case mode != nil:
		return fs.FileMode(*mode) & fs.ModePerm
	case defaultMode != nil:
		return fs.FileMode(*defaultMode) & fs.ModePerm
	}
	return fs.FileMode(v1.SecretVolumeSourceDefaultMode)
}
