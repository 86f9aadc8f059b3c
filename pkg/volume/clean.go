package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
)

// Clean implements pod.Volumes. It first takes off every mount below the pod's directory and deletes only when none is left, so that
// nothing behind a mount can be deleted; links are deleted, not followed.
func (m *Manager) Clean(ctx context.Context, uid types.UID) error {
	dir, err := m.podDir(uid)
	if err != nil {
		return fmt.Errorf("cannot clean up volumes: %w", err)
	}
	s := m.lock(uid)
	defer s.Unlock()
	if _, err := os.Lstat(dir); err == nil {
		if err := m.unmountAll(ctx, dir); err != nil {
			return fmt.Errorf("cannot clean up %s: %w", dir, err)
		}
		// Here lie only mount points. They are removed one by one: a directory that is not empty is not ours to delete.
		if err := removeMountPoints(filepath.Join(dir, subPathsName), 3); err != nil {
			return fmt.Errorf("cannot remove mount points: %w", err)
		}
		if err := m.images.release(uid); err != nil {
			return fmt.Errorf("cannot release images: %w", err)
		}
		if err := disk.RemoveAll(dir); err != nil {
			return fmt.Errorf("cannot remove the pod's directory: %w", err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot examine the pod's directory: %w", err)
	}
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	return nil
}

// unmountAll takes off everything mounted at dir or below it, the last mounted first.
func (m *Manager) unmountAll(ctx context.Context, dir string) error {
	if m.mounts == nil {
		return nil
	}
	points, err := m.mounts.below(dir)
	if err != nil || len(points) == 0 {
		return err
	}
	var errs []error
	for _, p := range slices.Backward(points) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, m.mounts.unmount(p))
	}
	left, err := m.mounts.below(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("%s is still mounted", left[0]))
		return errors.Join(errs...)
	}
	return nil
}

// removeMountPoints removes dir and the directories in it down to depth, and files there; each must be empty by then.
func removeMountPoints(dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if depth > 1 && e.IsDir() {
			err = removeMountPoints(p, depth-1)
		} else {
			err = os.Remove(p)
		}
		if err != nil {
			return err
		}
	}
	return os.Remove(dir)
}
