package volume

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
)

// Engines on Windows mount directories and pipes, no single files (moby/moby#30555). A file of a volume is copied into the container before
// it starts, which serves where the container may only read: as with mounts by subPath everywhere, later changes do not reach it.

// maxStaged is how large a file may be that is copied, in bytes.
const maxStaged = 64 << 20

// pipesBuild is 1709: the first Windows whose engine mounts pipes (moby/moby#33852).
const pipesBuild = 16299

// checkPipe says why the pipe of mount cannot be had as asked.
func (m *Manager) checkPipe(mount pod.Mount, sub string) error {
	switch {
	case m.cfg.Platform.Build < pipesBuild:
		return fmt.Errorf("%s is a pipe, which containers can use from Windows Server version 1709 (build %d) on; this host has %d", mount.HostPath, pipesBuild, m.cfg.Platform.Build)
	case !podspec.IsPipe(mount.ContainerPath):
		return fmt.Errorf(`%s is a pipe; mountPath must be one as well, like \\.\pipe\name, and is %s`, mount.HostPath, mount.ContainerPath)
	case sub != "":
		return fmt.Errorf("%s is a pipe, in which there is no subPath %q", mount.HostPath, sub)
	case mount.ReadOnly:
		return fmt.Errorf("%s is a pipe, which cannot be read-only: leave readOnly out", mount.HostPath)
	}
	return nil
}

// wholeFile stages a volume that is a file itself (hostPath).
func (m *Manager) wholeFile(p *v1.Pod, of mountOf, mount *pod.Mount) error {
	if fi, err := os.Stat(mount.HostPath); err != nil || fi.IsDir() {
		return nil // what is wrong with it the engine says
	}
	f, err := os.Open(mount.HostPath)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", mount.HostPath, err)
	}
	defer f.Close()
	return m.stageFile(p, of, f, mount)
}

// stageFile makes mount one of a copy of f, if that is a file: the copy is where no container can exchange it for a link.
func (m *Manager) stageFile(p *v1.Pod, of mountOf, f *os.File, mount *pod.Mount) error {
	fi, err := f.Stat()
	if err != nil || fi.IsDir() {
		return err
	}
	switch {
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s is neither a directory nor a file", mount.HostPath)
	case !mount.ReadOnly:
		return fmt.Errorf("%s is a file; Docker on Windows can only mount directories: set readOnly: true to have a copy of it, or mount the directory it is in", mount.HostPath)
	case fi.Size() > maxStaged:
		return fmt.Errorf("%s has %d bytes; files of at most %d are copied into a container: mount the directory it is in", mount.HostPath, fi.Size(), maxStaged)
	case !strings.HasPrefix(strings.ToLower(mount.ContainerPath), `c:\`):
		return fmt.Errorf("%s is a file, which can be copied to drive C of a container alone; mountPath is %s", mount.HostPath, mount.ContainerPath)
	}
	target, err := m.subPathTarget(p, of)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(target), dirMode)
	}
	if err != nil {
		return err
	}
	if err := m.protect(filepath.Dir(target), accessNone); err != nil {
		return err
	}
	if err := copyTo(target, f); err != nil {
		return fmt.Errorf("cannot copy %s: %w", mount.HostPath, err)
	}
	mount.HostPath, mount.Copy = target, true
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
	n, err := io.Copy(to, io.LimitReader(f, maxStaged+1))
	if n > maxStaged {
		err = fmt.Errorf("it has grown beyond %d bytes", maxStaged)
	}
	return errors.Join(err, to.Close())
}

// checkTargets says which two mounts of a container Windows does not tell apart, or that a file would be copied where a mount hides it.
func checkTargets(c *v1.Container, mounts []pod.Mount) error {
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
