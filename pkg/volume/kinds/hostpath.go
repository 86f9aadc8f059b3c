package kinds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// hostPath is a file or directory of the host, of a pod or behind a claim. It is not the pod's: neither its group nor its usage nor its end is.
type hostPath struct{ platform pod.Platform }

func (hostPath) Name() string { return "kubernetes.io/host-path" }

func (hostPath) Has(v volume.Volume) bool { return hostPathOf(v) != nil }

func hostPathOf(v volume.Volume) *v1.HostPathVolumeSource {
	if v.PV != nil {
		return v.PV.Spec.HostPath
	}
	return v.Spec.HostPath
}

func (k hostPath) Prepare(_ context.Context, v volume.Volume) (string, error) {
	source := hostPathOf(v)
	path, err := paths.Host(k.platform, source.Path)
	if err != nil {
		return "", err
	}
	return path, k.make(source, path)
}

func (k hostPath) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	path, err := paths.Host(k.platform, hostPathOf(v).Path)
	return volume.Mount{Path: path}, err
}

func (hostPath) Usage(volume.Volume) (disk.Place, bool, error) { return disk.Place{}, false, nil }

func (hostPath) Clean(context.Context, volume.Remains) error { return nil }

// make checks or makes what hostPath.type asks for, with upstream's words. Without a type a missing directory is made, as
// engines have always done.
func (k hostPath) make(s *v1.HostPathVolumeSource, path string) error {
	want := v1.HostPathUnset
	if s.Type != nil {
		want = *s.Type
	}
	if k.platform.OS == "windows" && podspec.IsPipe(path) {
		return nil // a pipe can only be opened, which would disturb its owner
	}
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		switch want {
		case v1.HostPathUnset, v1.HostPathDirectoryOrCreate:
			if err := os.MkdirAll(path, 0o755); err != nil {
				return fmt.Errorf("cannot make directory %s: %w", path, err)
			}
			return nil
		case v1.HostPathFileOrCreate:
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return fmt.Errorf("cannot make file %s: %w", path, err)
			}
			return f.Close()
		}
	} else if err != nil {
		return fmt.Errorf("cannot examine %s: %w", path, err)
	}
	var mode fs.FileMode
	if err == nil {
		mode = fi.Mode()
	}
	const isDevice, isChar = fs.ModeDevice, fs.ModeCharDevice
	ok, what := true, ""
	switch want {
	case v1.HostPathUnset:
	case v1.HostPathDirectory, v1.HostPathDirectoryOrCreate:
		ok, what = mode.IsDir(), "a directory"
	case v1.HostPathFile, v1.HostPathFileOrCreate:
		ok, what = err == nil && mode.IsRegular(), "a file"
	case v1.HostPathSocket:
		ok, what = mode&fs.ModeSocket != 0, "a socket file"
	case v1.HostPathCharDev:
		ok, what = mode&isChar != 0, "a character device"
	case v1.HostPathBlockDev:
		ok, what = mode&isDevice != 0 && mode&isChar == 0, "a block device"
	default:
		return fmt.Errorf("%s is an invalid volume type", want)
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return nil
}
