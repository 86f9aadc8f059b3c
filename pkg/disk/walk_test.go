package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/pkg/host"
)

// TestWalk counts a small tree on every system, without what is left out.
func TestWalk(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"f", "a/f", "a/b/c/f", "a/volumes/f", "volumes/f"} {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, 10_000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWalk(dir, "volumes")
	sum, done, err := w.Step(func(host.Disk) bool { return false })
	if unread, why := w.Unread(); err != nil || !done || unread > 0 || sum.InodesUsed != 9 || sum.Used < 40_000 || sum.Used > 80_000 {
		t.Errorf("%d bytes in %d files, done %v, %d unread (%v), %v", sum.Used, sum.InodesUsed, done, unread, why, err)
	}
	if s, err := examine(filepath.Join(dir, "f")); err != nil || s.bytes < 10_000 {
		t.Errorf("one file: %+v, %v", s, err)
	}
	if _, err := Measure(filepath.Join(dir, "none")); err == nil {
		t.Error("nothing there, and no error")
	}
}
