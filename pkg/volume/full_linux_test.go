package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestDiskFull runs out of room below the root directory: the error says so, what was there is kept whole, nothing half-written is left,
// and the next try after there is room again succeeds.
func TestDiskFull(t *testing.T) {
	made := volumetest.New(t, volumetest.Linux())
	inNamespace(t, func(t *testing.T) {
		if err := unix.Mount("tmpfs", made.Host.Root, "tmpfs", 0, "size=128k"); err != nil {
			t.Error(err)
			return
		}
		defer unix.Unmount(made.Host.Root, unix.MNT_DETACH)
		made.Restart()
		m := made.Manager
		made.API.ConfigMaps["c"] = map[string]string{"key": "first"}
		p := volumetest.Pod(volumetest.ConfigMapVol("c", "c"))
		paths, err := m.Prepare(t.Context(), p)
		if err != nil {
			t.Error(err)
			return
		}
		hosts, err := m.WriteFile(p.UID, "hosts", []byte("one\n"), 0o644)
		if err != nil {
			t.Error(err)
			return
		}
		ballast := filepath.Join(made.Host.Root, "ballast")
		fill(t, ballast)

		large := strings.Repeat("x", 9000)
		made.API.ConfigMaps["c"] = map[string]string{"key": large, "other": large}
		if _, err = m.Prepare(t.Context(), p); !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "c" : `) {
			t.Errorf("full: %v", err)
		}
		first := err.Error()
		if _, err = m.Prepare(t.Context(), p); err == nil || err.Error() != first {
			t.Errorf("the second try: %v, want %s", err, first)
		}
		if got := content(t, filepath.Join(paths["c"], "key")); got != "first" {
			t.Errorf("the volume has %.20q now", got)
		}
		if entries, err := os.ReadDir(paths["c"]); err != nil || len(entries) != 3 { // ..data, its directory, key
			t.Errorf("left behind: %v, %v", entries, err)
		}
		if _, err = m.WriteFile(p.UID, "hosts", []byte(large), 0o644); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a longer file: %v", err)
		}
		if got := content(t, hosts); got != "one\n" {
			t.Errorf("the file has %.20q now", got)
		}
		if _, err = m.WriteFile(p.UID, "new", []byte(large), 0o644); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a new file: %v", err)
		}
		if _, err = os.Lstat(filepath.Join(filepath.Dir(hosts), "new")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("half a file is left: %v", err)
		}

		if err := os.Remove(ballast); err != nil {
			t.Error(err)
		}
		if _, err = m.Prepare(t.Context(), p); err != nil {
			t.Errorf("after there is room: %v", err)
		}
		if _, err = m.WriteFile(p.UID, "hosts", []byte(large), 0o644); err != nil {
			t.Errorf("after there is room: %v", err)
		}
		if content(t, filepath.Join(paths["c"], "other")) != large || content(t, hosts) != large {
			t.Error("after there is room: not what was written")
		}
	})
}

// fill writes a file until the file system is full.
func fill(t *testing.T, path string) {
	f, err := os.Create(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
}

func content(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}
