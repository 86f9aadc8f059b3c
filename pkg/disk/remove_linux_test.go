package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveDeep: a tree deeper than the file limit is removed, but not the targets of its links.
func TestRemoveDeep(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	dir := filepath.Join(t.TempDir(), "tree")
	must(t, os.MkdirAll(filepath.Join(dir, "x"), 0o755), os.MkdirAll(filepath.Join(outside, "keep"), 0o755), os.Symlink(outside, filepath.Join(dir, "x/link")))
	dig(t, filepath.Join(dir, "x"), 1500)
	dig(t, dir, 100)
	for i := range 3000 { // more than one list of names
		must(t, os.WriteFile(filepath.Join(dir, "x", fmt.Sprintf("a-rather-long-name-%d", i)), nil, 0o600))
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.WriteFile(filepath.Join(dir, ".removed-1"), nil, 0o600))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = 200
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	err := RemoveAll(dir)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit), err)
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	must(t, os.WriteFile(file, nil, 0o600), RemoveAll(file), RemoveAll(file), RemoveAll(filepath.Join(dir, "no/such")))
	if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is still there: %v", err)
	}
}
