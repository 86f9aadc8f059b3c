package subpath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// Engines on Windows mount directories and pipes, no single files (moby/moby#30555). A file of a volume is copied into the container before
// it starts, which serves where the container may only read: as with mounts by subPath everywhere, later changes do not reach it.

// maxCopied is how large a file may be that is copied, in bytes.
const maxCopied = 64 << 20

// pipesBuild is 1709: the first Windows whose engine mounts pipes (moby/moby#33852).
const pipesBuild = 16299

// checkPipe says why the pipe of m cannot be mounted as asked.
func (k *Maker) checkPipe(m pod.Mount, sub string) error {
	switch {
	case k.Platform.Build < pipesBuild:
		return fmt.Errorf("%s is a pipe, which containers can use from Windows Server version 1709 (build %d) on; this host has %d", m.HostPath, pipesBuild, k.Platform.Build)
	case !podspec.IsPipe(m.ContainerPath):
		return fmt.Errorf(`%s is a pipe; mountPath must be one as well, like \\.\pipe\name, and is %s`, m.HostPath, m.ContainerPath)
	case sub != "":
		return fmt.Errorf("%s is a pipe, which cannot have a subPath %q", m.HostPath, sub)
	case m.ReadOnly:
		return fmt.Errorf("%s is a pipe, which cannot be read-only: leave readOnly out", m.HostPath)
	}
	return nil
}

// wholeFile copies a volume that is a file itself (hostPath).
func (k *Maker) wholeFile(m *pod.Mount, to Target) error {
	if fi, err := os.Stat(m.HostPath); err != nil || fi.IsDir() {
		return nil // the engine says what is wrong with it
	}
	f, err := os.Open(m.HostPath)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", m.HostPath, err)
	}
	defer f.Close()
	return k.copyFile(m, f, to)
}

// copyFile makes m a mount of a copy of f, if that is a file: the copy is where no container can exchange it for a link.
func (k *Maker) copyFile(m *pod.Mount, f *os.File, to Target) error {
	fi, err := f.Stat()
	if err != nil || fi.IsDir() {
		return err
	}
	switch {
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s is neither a directory nor a file", m.HostPath)
	case !m.ReadOnly:
		return fmt.Errorf("%s is a file; Docker on Windows can only mount directories: set readOnly: true to have a copy of it, or mount the directory it is in", m.HostPath)
	case fi.Size() > maxCopied:
		return fmt.Errorf("%s has %d bytes; files of at most %d are copied into a container: mount the directory it is in", m.HostPath, fi.Size(), maxCopied)
	case !strings.HasPrefix(strings.ToLower(m.ContainerPath), `c:\`):
		return fmt.Errorf("%s is a file, which can be copied only to drive C of a container; mountPath is %s", m.HostPath, m.ContainerPath)
	}
	target, err := to.path(k.Platform)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(target), paths.DirMode)
	}
	if err != nil {
		return err
	}
	if err := k.Access.Protect(filepath.Dir(target), access.None); err != nil {
		return err
	}
	if err := copyTo(target, f); err != nil {
		return fmt.Errorf("cannot copy %s: %w", m.HostPath, err)
	}
	m.HostPath, m.Copy = target, true
	return nil
}

func copyTo(target string, f io.Reader) error {
	// The last container may have had a directory there, whose mount point it was; or another file.
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	to, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(to, io.LimitReader(f, maxCopied+1))
	if n > maxCopied {
		err = fmt.Errorf("it has grown beyond %d bytes", maxCopied)
	}
	return errors.Join(err, to.Close())
}

// CheckTargets says which two mounts of a container are the same on Windows, or which file would be copied where another mount hides it; nil
// when there are none. mounts are those of c.VolumeMounts, in order.
func CheckTargets(c *v1.Container, mounts []pod.Mount) error {
	for i := range mounts {
		for j := range mounts {
			rest, within := podspec.WindowsWithin(mounts[i].ContainerPath, mounts[j].ContainerPath)
			switch a, b := c.VolumeMounts[i].MountPath, c.VolumeMounts[j].MountPath; {
			case i == j || !within:
			case rest == "":
				return fmt.Errorf("mountPath %q and mountPath %q are the same on Windows, which does not distinguish case and slashes", b, a)
			case mounts[i].Copy:
				return fmt.Errorf("mountPath %q is that of a file, and lies in that of volume %q at %q: Windows cannot have it there; use a projected volume, or another path",
					a, mounts[j].Name, b)
			}
		}
	}
	return nil
}
