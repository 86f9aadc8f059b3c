package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRemoveAllWindows: a tree of any depth is removed; a missing one is not an error.
func TestRemoveAllWindows(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	deep := filepath.Join(top, strings.Repeat(`directory\`, 40))
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(filepath.Join(deep, "f"), []byte("f"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemoveAll(top); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(top); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is there: %v", err)
		}
	}
}

// TestFolderWindows: a missing directory is an error of the file system; directories stay open and are never parked.
func TestFolderWindows(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := openFolder(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := examine(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	f, _, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if _, err := f.enter("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory in it: %v", err)
	}
	if _, err := f.park(); !errors.Is(err, errTooDeep) {
		t.Errorf("parked: %v", err)
	}
	if _, err := f.above(mark{}); !errors.Is(err, errMoved) {
		t.Errorf("above: %v", err)
	}
	if find := FindRemoved(dir, nil); find != nil {
		t.Error("files that were removed are looked for")
	}
}
