package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/volume/subpath"
)

// Clean implements pod.Volumes. Mounts of subPaths go first, then every kind undoes its own, then everything still mounted below the pod's
// directory is unmounted. Only when nothing is left mounted there is anything deleted, so that nothing behind a mount can be; links are
// deleted, not followed.
func (m *Manager) Clean(ctx context.Context, uid types.UID) error {
	dir, err := m.podDir(uid)
	if err != nil {
		return fmt.Errorf("cannot clean up volumes: %w", err)
	}
	defer m.lock(uid).Unlock()
	left := Remains{UID: uid, dir: dir}
	switch _, err = os.Lstat(dir); {
	case err == nil:
		err = m.undo(ctx, left)
	case errors.Is(err, fs.ErrNotExist):
		_, err = m.cleanKinds(ctx, left)
	}
	if err != nil {
		return fmt.Errorf("cannot clean up %s: %w", dir, err)
	}
	m.claims.forget(uid)
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	return nil
}

// undo removes a pod's directory with everything that is mounted there or kept for it elsewhere.
func (m *Manager) undo(ctx context.Context, left Remains) error {
	points, err := m.host.Mounts.Below(left.dir)
	if err != nil {
		return err
	}
	within := subpath.Dir(left.dir) + string(filepath.Separator)
	var subPaths, others []string
	for _, p := range points {
		if strings.HasPrefix(p, within) {
			subPaths = append(subPaths, p)
		} else {
			others = append(others, p)
		}
	}
	if err := m.unmount(ctx, subPaths); err != nil {
		return err
	}
	failed, err := m.cleanKinds(ctx, left)
	errs := []error{err}
	if len(points) > 0 {
		// What a kind has not done with stays mounted: only the kind knows in which order it ends.
		others = slices.DeleteFunc(others, func(p string) bool {
			below, ok := strings.CutPrefix(p, filepath.Join(left.dir, volumesName)+string(filepath.Separator))
			dir, _, _ := strings.Cut(below, string(filepath.Separator))
			return ok && slices.ContainsFunc(failed, func(r tableRow) bool { return r.hasDir(dir) })
		})
		errs = append(errs, m.unmount(ctx, others))
		still, err := m.host.Mounts.Below(left.dir)
		if len(still) > 0 {
			err = fmt.Errorf("%s is still mounted", still[0])
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := subpath.Remove(left.dir); err != nil {
		return fmt.Errorf("cannot remove mount points: %w", err)
	}
	return disk.RemoveAll(left.dir)
}

// cleanKinds has every kind undo what it did for a pod. One that fails does not keep the others from it; failed are those.
func (m *Manager) cleanKinds(ctx context.Context, left Remains) (failed []tableRow, err error) {
	var errs []error
	for _, kind := range m.kinds {
		if err := kind.Clean(ctx, left); err != nil {
			failed, errs = append(failed, kind), append(errs, fmt.Errorf("%s: %w", kind.Name(), err))
		}
	}
	return failed, errors.Join(errs...)
}

// unmount removes mounts, the last mounted first.
func (m *Manager) unmount(ctx context.Context, points []string) error {
	var errs []error
	for _, p := range slices.Backward(points) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		errs = append(errs, m.host.Mounts.Unmount(p))
	}
	return errors.Join(errs...)
}
