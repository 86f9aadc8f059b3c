package flex

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/volume"
)

// spots are the directories where drivers put volumes, as the host shows them.
type spots struct {
	host volume.Host

	mu  sync.Mutex
	put map[string]bool // where drivers have put volumes since the agent started, and whether they are mounted there
}

// there reports whether a driver's volume is at path: mounted, or on Windows linked. It does not look behind a mount, which may hang.
func (s *spots) there(path string) (bool, error) {
	points, err := s.host.Mounts.Below(path)
	if err != nil || slices.Contains(points, path) {
		return err == nil, err
	}
	if s.host.Platform.OS != "windows" {
		return false, nil
	}
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && fi.Mode()&(fs.ModeSymlink|fs.ModeIrregular) != 0, err
}

// placed reports whether a driver's volume is at path, or a driver that mounts nothing has put it there since the agent started.
func (s *spots) placed(path string) (bool, error) {
	if there, err := s.there(path); err != nil || there {
		return there, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, done := s.put[path]
	return done && !was, nil
}

// place records that a driver has put a volume at path.
func (s *spots) place(path string) error {
	there, err := s.there(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put[path] = there
	return nil
}

// unmountAll unmounts what a driver has left at path or below it.
func (s *spots) unmountAll(driver, path string) error {
	points, err := s.host.Mounts.Below(path)
	for _, p := range slices.Backward(points) {
		klog.InfoS("Unmounting what a flexVolume driver has left mounted", "driver", driver, "path", p)
		if err := s.host.Mounts.Unmount(p); err != nil {
			return err
		}
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.put, path)
	}
	return err
}
