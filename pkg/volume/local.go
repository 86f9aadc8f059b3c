package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/podspec"
)

// prepareHostPath checks or makes what hostPath.type asks for, with upstream's words. Without a type a missing directory is made, as
// engines have always done.
func (m *Manager) prepareHostPath(s *v1.HostPathVolumeSource, path string) error {
	kind := v1.HostPathUnset
	if s.Type != nil {
		kind = *s.Type
	}
	if m.cfg.Platform.OS == "windows" && podspec.IsPipe(path) {
		return nil // a pipe can only be opened, which would disturb its owner
	}
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		switch kind {
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
	switch kind {
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
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
	}
	return nil
}

// prepareEmptyDir makes an emptyDir once. Afterwards it belongs to the pod: neither its mode nor its owner is touched again, which is
// what the mark beside it is for.
func (m *Manager) prepareEmptyDir(p *v1.Pod, v *v1.Volume, path string) error {
	mark, err := m.mark(p.UID, emptyDirName, v.Name)
	if err != nil {
		return err
	}
	ready := exists(mark) && exists(path)
	memory := false
	switch v.EmptyDir.Medium {
	case v1.StorageMediumDefault:
	case v1.StorageMediumMemory:
		memory = m.mounts != nil
	default: // also HugePages: they need a mount with the page size, and limits that engines cannot set
		return fmt.Errorf("emptyDir.medium %q is not supported by this node agent; want \"\" or \"Memory\"", v.EmptyDir.Medium)
	}
	if memory && ready { // a reboot takes the memory away
		if ready, err = m.mounts.isMount(path); err != nil {
			return err
		}
	}
	if ready {
		return nil
	}
	if err := makeDir(path, 0o777); err != nil {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	if memory {
		options := "mode=1777" // as upstream's: only its owner removes a file there, as in /tmp
		if size := m.memorySize(p, v); size > 0 {
			options += fmt.Sprintf(",size=%d", size)
		}
		if err := m.tmpfs(path, options, false); err != nil {
			return err
		}
	}
	if err := m.setGroup(path, p.Spec.SecurityContext, false); err != nil {
		return err
	}
	if err := m.protect(path, accessModify); err != nil {
		return err
	}
	return setMark(mark)
}

// mark is the file that says that a volume belongs to the pod: its mode and owner are not touched any more.
func (m *Manager) mark(uid types.UID, kind, name string) (string, error) {
	podDir, err := m.podDir(uid)
	if err == nil {
		err = checkElement(m.cfg.Platform, name)
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(podDir, "plugins", kind, name, "ready"), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func setMark(mark string) error {
	if err := os.MkdirAll(filepath.Dir(mark), dirMode); err != nil {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	if err := os.WriteFile(mark, nil, 0o640); err != nil {
		return fmt.Errorf("cannot mark the volume as ready: %w", err)
	}
	return nil
}

// memorySize is how large a tmpfs may grow: sizeLimit, the pod's memory limit and what the node can give, whichever is least. 0 is the
// kernel's default, half of the memory. (KEP-1967)
func (m *Manager) memorySize(p *v1.Pod, v *v1.Volume) int64 {
	var size int64
	least := func(n int64) {
		if n > 0 && (size == 0 || n < size) {
			size = n
		}
	}
	if node := m.objects.Node(); node != nil {
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

// tmpfs mounts memory at dir unless it is there already. Content of Secrets may go to disk where mounting is forbidden to us.
func (m *Manager) tmpfs(dir, options string, mayFail bool) error {
	mounted, err := m.mounts.isMount(dir)
	if err != nil || mounted {
		return err
	}
	err = m.mounts.tmpfs(dir, options)
	if err != nil && mayFail && errors.Is(err, fs.ErrPermission) {
		klog.InfoS("Keeping a volume on disk instead of in memory: this agent may not mount", "directory", dir, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot mount memory: %w", err)
	}
	return nil
}

// fsGroup is the group that files of p's volumes get, if any.
func (m *Manager) fsGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil || m.cfg.Platform.OS == "windows" {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

// Bits that a group needs: on files, and beside them on directories, where new files inherit the group.
const (
	groupReadWrite fs.FileMode = 0o660
	groupRead      fs.FileMode = 0o440
	groupDir                   = fs.ModeSetgid | 0o110
)

// setGroup gives everything in the volume at dir to securityContext.fsGroup. With fsGroupChangePolicy OnRootMismatch it does nothing
// when the root already is as it should be; therefore the root comes last. Links are not followed.
func (m *Manager) setGroup(dir string, sc *v1.PodSecurityContext, readOnly bool) error {
	if sc == nil || sc.FSGroup == nil || m.cfg.Platform.OS == "windows" {
		return nil
	}
	bits := groupReadWrite
	if readOnly {
		bits = groupRead
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("cannot open volume: %w", err)
	}
	defer root.Close()
	if sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch {
		fi, err := root.Lstat(".")
		if err != nil {
			return fmt.Errorf("cannot examine volume: %w", err)
		}
		want := bits | groupDir
		if gid, known := groupOf(fi); known && gid == *sc.FSGroup && fi.Mode()&want == want {
			return nil
		}
	}
	set := func(name string, mode fs.FileMode) error {
		if err := root.Lchown(name, -1, int(*sc.FSGroup)); err != nil || mode&fs.ModeSymlink != 0 {
			return err
		}
		want := mode.Perm() | mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | bits
		if mode.IsDir() {
			want |= groupDir
		}
		return root.Chmod(name, want)
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		return set(name, fi.Mode())
	})
	if err == nil {
		var fi fs.FileInfo
		if fi, err = root.Stat("."); err == nil {
			err = set(".", fi.Mode())
		}
	}
	if err != nil {
		return fmt.Errorf("cannot give the volume to group %d: %w", *sc.FSGroup, err)
	}
	return nil
}
