package kinds

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// emptyDir is a directory that lives as long as the pod, on disk or in memory.
type emptyDir struct {
	host *volume.Host
	node Node
}

// Node is this node's object in the API; nil: not known yet.
type Node interface{ Node() *v1.Node }

func (*emptyDir) Name() string { return "kubernetes.io/empty-dir" }

func (*emptyDir) Has(v volume.Volume) bool { return v.Spec.EmptyDir != nil }

// Prepare makes the directory once. From then on it belongs to the pod: neither its mode nor its owner is touched again, which is what the mark
// is for.
func (k *emptyDir) Prepare(_ context.Context, v volume.Volume) (string, error) {
	path, err := v.Dir()
	if err != nil {
		return "", err
	}
	memory := false
	switch medium := v.Spec.EmptyDir.Medium; medium {
	case v1.StorageMediumDefault:
	case v1.StorageMediumMemory:
		memory = k.host.Platform.OS != "windows"
	default: // also HugePages: they need a mount with the page size, and limits that engines cannot set
		return "", fmt.Errorf("emptyDir.medium %q is not supported by this node agent; want \"\" or \"Memory\"", medium)
	}
	ready, err := v.Made()
	ready = ready && paths.Exists(path)
	if err == nil && ready && memory { // a reboot takes the memory away
		ready, err = k.host.Mounts.IsMount(path)
	}
	if err != nil || ready {
		return path, err
	}
	if err := k.make(v, path, memory); err != nil {
		return "", err
	}
	return path, v.SetMade()
}

func (k *emptyDir) make(v volume.Volume, path string, memory bool) error {
	if err := paths.MakeDir(path, 0o777); err != nil {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	if memory {
		options := "mode=1777" // as upstream's: only its owner removes a file there, as in /tmp
		if size := k.memorySize(v.Pod, v.Spec); size > 0 {
			options += fmt.Sprintf(",size=%d", size)
		}
		if err := mount.Memory(k.host.Mounts, path, options, false); err != nil {
			return err
		}
	}
	if err := k.host.Access.SetGroup(path, v.Pod.Spec.SecurityContext, false); err != nil {
		return err
	}
	return k.host.Access.Protect(path, access.Modify)
}

func (*emptyDir) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	path, err := v.Dir()
	return volume.Mount{Path: path}, err
}

func (k *emptyDir) Usage(v volume.Volume) (disk.Place, bool, error) {
	place, counts, err := usageOf(k.host, v)
	place.EmptyDir, place.Memory = true, place.Own
	return place, counts, err
}

func (*emptyDir) Clean(context.Context, volume.Remains) error { return nil }

// memorySize is how large a tmpfs may grow: sizeLimit, the pod's memory limit and what the node can give, whichever is least. 0 is the
// kernel's default, half of the memory. (KEP-1967)
func (k *emptyDir) memorySize(p *v1.Pod, v *v1.Volume) int64 {
	var size int64
	least := func(n int64) {
		if n > 0 && (size == 0 || n < size) {
			size = n
		}
	}
	if node := k.node.Node(); node != nil {
		least(node.Status.Allocatable.Memory().Value())
	}
	limited := len(p.Spec.Containers) > 0
	for _, c := range p.Spec.Containers {
		limited = limited && !c.Resources.Limits.Memory().IsZero()
	}
	if limited {
		limits := resource.PodLimits(p, resource.PodResourcesOptions{})
		least(limits.Memory().Value())
	}
	if v.EmptyDir.SizeLimit != nil {
		least(v.EmptyDir.SizeLimit.Value())
	}
	return size
}
