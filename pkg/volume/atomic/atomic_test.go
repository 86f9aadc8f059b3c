package atomic

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// Half-made states that a killed agent leaves are repaired.
func TestContentAfterCrash(t *testing.T) {
	if filepath.Separator != '/' {
		t.Skip("modes and links need a Linux file system")
	}
	dir := t.TempDir()
	w := NewWriter(pod.Platform{OS: "linux"}, clock.RealClock{})
	want := Content{"a": {Data: []byte("1"), Mode: 0o644}}
	if there, err := w.Has(dir); err != nil || there {
		t.Errorf("before the first Write: there %v, %v", there, err)
	}
	if err := w.Write(dir, want, nil); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { return os.MkdirAll(filepath.Join(dir, "..2020_01_01_00_00_00.1/x"), 0o755) },
		func() error { return os.Symlink("nowhere", filepath.Join(dir, "..data_tmp")) },
		func() error { return os.Remove(filepath.Join(dir, "a")) },
		func() error { return os.Remove(filepath.Join(dir, "..data")) },
		func() error {
			return errors.Join(os.Remove(filepath.Join(dir, "..data")), os.Symlink("../../../../../etc", filepath.Join(dir, "..data")))
		},
		func() error { return os.WriteFile(filepath.Join(dir, "..data", "a"), []byte("half"), 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		err := w.Write(dir, want, nil)
		entries, listErr := os.ReadDir(dir)
		data, readErr := os.ReadFile(filepath.Join(dir, "a"))
		if err := errors.Join(err, listErr, readErr); err != nil || string(data) != "1" || len(entries) != 3 { // a, ..data, its directory
			t.Errorf("not repaired: %q, %v, %v", data, entries, err)
		}
		if there, err := w.Has(dir); err != nil || !there {
			t.Errorf("after a Write: there %v, %v", there, err)
		}
	}
}

// TestConflicts: what cannot be in one directory is refused before anything is written.
func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		system string
		paths  []string
		want   string // part of the error; "": accepted
	}{
		{"linux", []string{"x", "x/y"}, "cannot be a file and the directory"},
		{"linux", []string{"Key", "key"}, ""},
		{"windows", []string{"Key", "key"}, "differ only in case"},
		{"windows", []string{"X", "x/y"}, "cannot be a file and the directory"},
		{"windows", []string{"x/a", "X/b"}, ""},
	} {
		if c.system == "linux" && filepath.Separator != '/' {
			continue
		}
		dir := t.TempDir()
		content := Content{}
		for _, p := range c.paths {
			content[p] = File{Mode: 0o644}
		}
		err := NewWriter(pod.Platform{OS: c.system}, clock.RealClock{}).Write(dir, content, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %q: %v, want %q", c.system, c.paths, err, c.want)
		}
		if left, err := os.ReadDir(dir); c.want != "" && (err != nil || len(left) != 0) {
			t.Errorf("%s %q: written %v, %v", c.system, c.paths, left, err)
		}
	}
}

// TestHeld: a file that a container holds on Windows is tried again, with the same words each time; it holds up no other file.
func TestHeld(t *testing.T) {
	dir := t.TempDir()
	w := NewWriter(pod.Platform{OS: "windows", Build: 20348}, clock.RealClock{})
	write := func(text string) error {
		return w.Write(dir, Content{"held": {Data: []byte(text)}, "a": {Data: []byte(text)}, "z": {Data: []byte(text)}}, nil)
	}
	has := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
	if err := write("1"); err != nil {
		t.Fatal(err)
	}
	w.rename = func(from, to string) error {
		if filepath.Base(to) == "held" {
			return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.Errno(5)}
		}
		return os.Rename(from, to)
	}
	first, second := write("2"), write("2")
	if !errors.Is(first, ErrHeld) || second == nil || first.Error() != second.Error() || !strings.HasPrefix(first.Error(), "cannot write held: the file keeps its former content") || strings.Contains(first.Error(), dir) {
		t.Errorf("%v, then %v", first, second)
	}
	has("held", "1")
	has("a", "2")
	has("z", "2")
	w.rename = os.Rename
	if err := write("2"); err != nil {
		t.Error(err)
	}
	has("held", "2")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("left: %v, %v", entries, err)
	}
	w.rename = func(from, to string) error {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.Errno(112)}
	} // the disk is full
	if first, second := write("3"), write("3"); first == nil || errors.Is(first, ErrHeld) || first.Error() != second.Error() {
		t.Errorf("another error: %v, then %v", first, second)
	}
}
