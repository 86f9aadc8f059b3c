package disk

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/pkg/host"
)

// TestWalk counts a small tree on every system, with skipped names.
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

// crowd is a directory of very many files, each with a second name elsewhere.
type crowd struct{ given, files int }

func (c *crowd) next() (entry, error) {
	if c.given == c.files {
		return entry{}, io.EOF
	}
	c.given++
	return entry{space: space{bytes: 4096, inode: uint64(c.given), links: 2}}, nil
}
func (c *crowd) enter(string) (folder, error) { return nil, errors.New("there is no directory in it") }
func (c *crowd) park() (mark, error)          { return mark{}, nil }
func (c *crowd) above(mark) (folder, error)   { return nil, errMoved }
func (c *crowd) close()                       {}

// TestMillions: five million files are measured in pieces and with little memory.
func TestMillions(t *testing.T) {
	const files = 5_000_000
	w := NewWalk("")
	w.begun, w.open = true, []folder{&crowd{files: files}}
	pieces := 0
	for {
		names := 0
		sum, done, err := w.Step(func(host.Disk) bool { names += look; return names > 100_000 })
		if len(w.seen) > maxSeen || err != nil {
			t.Fatalf("%d files are remembered, %v", len(w.seen), err)
		}
		if pieces++; done {
			// Beyond the remembered files, each name counts as a fraction of its file.
			if want := uint64(maxSeen + (files-maxSeen)/2); sum.InodesUsed != want || sum.Used != want*4096 || pieces < files/100_100 {
				t.Errorf("%d bytes in %d files, in %d pieces; want %d files", sum.Used, sum.InodesUsed, pieces, want)
			}
			return
		}
	}
}
