package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/host"
)

// Usage is what one volume holds. What belongs to a file system of its own (memory, a local volume) has that file system's capacity; a
// directory among others has that of the one on which it lies, with what the directory itself takes as Used.
type Usage struct {
	Volume string // name in the spec
	Claim  string // name of the PersistentVolumeClaim; "": none
	host.Disk
	// EmptyDir says that Used counts against the volume's sizeLimit and, Memory aside, against ephemeral-storage.
	EmptyDir, Memory bool
}

// Usage measures the prepared volumes of p: those in the pod's own directory and those behind claims; hostPaths and images are not the
// pod's. It reads every name below a directory on disk, and for a file system of its own asks the kernel once. It does not wait for a
// Prepare of the pod, nor hold one up. With an error come the volumes that could be measured.
func (m *Manager) Usage(p *v1.Pod) ([]Usage, error) {
	var out []Usage
	var errs []error
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.HostPath != nil || v.Image != nil {
			continue
		}
		u, err := m.usage(p, v)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotPrepared):
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot measure volume %q: %w", v.Name, err))
		default:
			out = append(out, u)
		}
	}
	return out, errors.Join(errs...)
}

// FilesUsed is how many bytes the files take that containers of the pod can write beside volumes: hosts, resolv.conf, termination messages.
func (m *Manager) FilesUsed(uid types.UID) (bytes uint64) {
	dir, err := m.podDir(uid)
	if err != nil {
		return 0
	}
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // it is gone, or not ours to read
		case entry.IsDir() && filepath.Dir(path) == dir && entry.Name() != "containers":
			return filepath.SkipDir // volumes
		case entry.Type().IsRegular():
			if info, err := entry.Info(); err == nil {
				bytes += uint64(info.Size())
			}
		}
		return nil
	})
	return bytes
}

var errNotPrepared = errors.New("not prepared")

func (m *Manager) usage(p *v1.Pod, v *v1.Volume) (Usage, error) {
	u := Usage{Volume: v.Name, EmptyDir: v.EmptyDir != nil}
	u.Claim, _ = claimOf(p, v)
	own := false
	var dir string
	var err error
	if u.Claim != "" {
		b, known := m.backingFor(p.UID, v.Name)
		if !known || b.hostPath != nil { // of a hostPath volume upstream tells nothing either
			return u, errNotPrepared
		}
		dir, own = b.path, true
	} else {
		if dir, err = m.path(p, v); err != nil {
			return u, err
		}
		if m.mounts != nil {
			if own, err = m.mounts.isMount(dir); err != nil {
				return u, err
			}
		}
		u.Memory = own && u.EmptyDir
	}
	if u.Disk, err = host.DiskUsage(dir); err != nil || own {
		return u, err
	}
	u.Used, u.InodesUsed, err = Measure(dir)
	return u, err
}

// Measure adds up what the files below dir take on disk. A file with several names counts once; what is mounted there counts elsewhere;
// what vanishes meanwhile does not count.
func Measure(dir string) (bytes, inodes uint64, err error) {
	type identity struct{ device, inode uint64 }
	var device uint64
	seen := map[identity]bool{}
	err = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		var fi fs.FileInfo
		if err == nil {
			fi, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) && name != dir {
			return nil
		}
		if err != nil {
			return err
		}
		space := spaceOf(fi)
		switch {
		case name == dir:
			device = space.device
		case space.device != device:
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case space.links > 1 && !e.IsDir():
			if id := (identity{space.device, space.inode}); seen[id] {
				return nil
			} else {
				seen[id] = true
			}
		}
		bytes += space.bytes
		inodes++
		return nil
	})
	return bytes, inodes, err
}

// space is what a file takes.
type space struct {
	bytes                uint64
	device, inode, links uint64
}
