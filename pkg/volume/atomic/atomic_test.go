package atomic

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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
