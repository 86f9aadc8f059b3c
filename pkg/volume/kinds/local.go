package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/grow"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// local is a directory or block device of this host behind a claim. It must be there, and belongs to the pod's fsGroup from the first use on. It grows by
// the administrator's hand: when the PersistentVolume says so, the claim has the new size.
type local struct {
	host   *volume.Host
	growth *grow.Growth[string] // by pod and volume; nil: claims are not followed
}

func newLocal(host *volume.Host, parts grow.Parts) *local {
	k := &local{host: host}
	if parts.Objects != nil {
		k.growth = &grow.Growth[string]{Parts: parts}
	}
	return k
}

func (*local) Name() string { return "kubernetes.io/local-volume" }

func (*local) Has(v volume.Volume) bool { return v.PV != nil && v.PV.Spec.Local != nil }

func (k *local) path(v volume.Volume) (string, error) {
	return paths.Host(k.host.Platform, v.PV.Spec.Local.Path)
}

func (k *local) Prepare(_ context.Context, v volume.Volume) (string, error) {
	path, err := k.prepare(v)
	if err == nil && k.growth != nil && v.Claim != "" {
		k.growSoon(v)
	}
	return path, err
}

// growSoon has the claim follow its PersistentVolume. There is nothing to do on the host.
func (k *local) growSoon(v volume.Volume) {
	at := grownKey(v.Pod.UID, v.Spec.Name)
	k.growth.Soon(grow.Volume[string]{
		Volume: v, Key: at, Spec: v.PV.Name, Driver: k.Name(), Target: at,
		Expand: func(ctx context.Context, step grow.Step) error {
			if source := step.PV.Spec.Local; source == nil || source.Path != v.PV.Spec.Local.Path {
				return grow.ErrNothing
			}
			return step.Begin(ctx)
		},
	})
}

func grownKey(uid types.UID, volume string) string { return string(uid) + "/" + volume }

func (k *local) prepare(v volume.Volume) (string, error) {
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
func (k *local) Clean(_ context.Context, r volume.Remains) error {
	if k.growth == nil {
		return nil
	}
	left, err := r.Volumes(k.Name())
	for _, one := range left {
		k.growth.End(grownKey(r.UID, one.Name))
	}
	return err
}
