package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// local is a directory or block device of this host behind a claim. It must be there, and belongs to the pod's fsGroup from the first use on.
type local struct{ host *volume.Host }

func (*local) Name() string { return "kubernetes.io/local-volume" }

func (*local) Has(v volume.Volume) bool { return v.PV != nil && v.PV.Spec.Local != nil }

func (k *local) path(v volume.Volume) (string, error) {
	return paths.Host(k.host.Platform, v.PV.Spec.Local.Path)
}

func (k *local) Prepare(_ context.Context, v volume.Volume) (string, error) {
	path, err := k.path(v)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("path %q does not exist", path)
	case err != nil:
		return "", fmt.Errorf("cannot examine local volume: %w", err)
	case v.Block():
		if fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
			return "", fmt.Errorf("path %q of PersistentVolume %s is not a block device, which volumeMode Block requires", path, v.PV.Name)
		}
		return path, nil
	case !fi.IsDir():
		return "", fmt.Errorf("path %q of PersistentVolume %s is not a directory; want one, or volumeMode Block for a block device", path, v.PV.Name)
	}
	if made, err := v.Made(); err != nil || made {
		return path, err
	}
	if !v.ReadOnly {
		if err := k.host.Access.SetGroup(path, v.Pod.Spec.SecurityContext, false); err != nil {
			return "", err
		}
	}
	return path, v.SetMade()
}

func (k *local) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	path, err := k.path(v)
	return volume.Mount{Path: path}, err
}

// Device implements volume.BlockKind.
func (k *local) Device(v volume.Volume) (string, error) { return k.path(v) }

func (k *local) Usage(v volume.Volume) (disk.Place, bool, error) {
	path, err := k.path(v)
	return disk.Place{Path: path, Own: true}, true, err
}

// Clean leaves the volume as it is: it is not the pod's.
func (*local) Clean(context.Context, volume.Remains) error { return nil }
