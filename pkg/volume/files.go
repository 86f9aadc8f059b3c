package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// WriteFile implements pod.Volumes. name may have directories in it ("containers/web/0123abcd"), with forward slashes.
func (m *Manager) WriteFile(uid types.UID, name string, data []byte, mode uint32) (string, error) {
	dir, err := m.podDir(uid)
	if err == nil {
		err = paths.CheckRelative(m.host.Platform, name)
	}
	if err != nil {
		return "", fmt.Errorf("cannot write file %q: %w", name, err)
	}
	defer m.lock(uid).Unlock()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), paths.DirMode); err != nil {
		return "", fmt.Errorf("cannot make the directory of file %q: %w", name, err)
	}
	if err := m.rewrite(path, data, os.FileMode(mode)); err != nil {
		return "", fmt.Errorf("cannot write file %q: %w", name, err)
	}
	return path, nil
}

// MakeDir implements pod.Volumes.
func (m *Manager) MakeDir(uid types.UID, name string) (string, error) {
	dir, err := m.podDir(uid)
	if err == nil {
		err = paths.CheckRelative(m.host.Platform, name)
	}
	if err != nil {
		return "", fmt.Errorf("cannot make directory %q: %w", name, err)
	}
	defer m.lock(uid).Unlock()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := paths.MakeDir(path, 0o777); err != nil {
		return "", fmt.Errorf("cannot make directory %q: %w", name, err)
	}
	return path, m.host.Access.Protect(path, access.Modify)
}

// KeepFiles implements pod.Volumes.
func (m *Manager) KeepFiles(uid types.UID, dir string, keep ...string) error {
	podDir, err := m.podDir(uid)
	if err == nil {
		err = paths.CheckRelative(m.host.Platform, dir)
	}
	if err != nil {
		return fmt.Errorf("cannot clear directory %q: %w", dir, err)
	}
	defer m.lock(uid).Unlock()
	entries, err := os.ReadDir(filepath.Join(podDir, filepath.FromSlash(dir)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			errs = append(errs, disk.RemoveAll(filepath.Join(podDir, filepath.FromSlash(dir), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot clear directory %q: %w", dir, err)
	}
	return nil
}

// rewrite changes the data of the file and keeps the file itself: a bind mount shows one inode, not a name. nil data keeps what is there.
func (m *Manager) rewrite(path string, data []byte, mode os.FileMode) error {
	if fi, err := os.Lstat(path); err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is in the way: want a regular file, have %s", path, fi.Mode())
	}
	old, missing := os.ReadFile(path)
	if missing == nil && (data == nil || string(old) == string(data)) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return err
	}
	// What needs more room comes first: when the disk is full, the file stays as it was.
	both := min(len(old), len(data))
	if _, err = f.WriteAt(data[both:], int64(both)); err != nil {
		err = errors.Join(err, f.Truncate(int64(len(old))))
	} else if _, err = f.WriteAt(data[:both], 0); err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && m.host.Platform.OS != "windows" {
		err = f.Chmod(mode)
	}
	err = errors.Join(err, f.Close())
	if err != nil && missing != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
