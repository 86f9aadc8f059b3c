package host

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestOpenBelow: pipes, sockets, devices and links that lead out are refused, and none of them blocks us.
func TestOpenBelow(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.MkdirAll(filepath.Join(below, "dir"), 0o755))
	check(os.WriteFile(filepath.Join(below, "file"), []byte("text"), 0o644))
	check(os.WriteFile(filepath.Join(dir, "outside"), nil, 0o644))
	check(syscall.Mkfifo(filepath.Join(below, "pipe"), 0o644))
	check(os.Symlink("pipe", filepath.Join(below, "link to pipe")))
	check(os.Symlink("file", filepath.Join(below, "link")))
	check(os.Symlink("../outside", filepath.Join(below, "link out")))
	socket, err := net.Listen("unix", filepath.Join(below, "socket"))
	check(err)
	defer socket.Close()
	root, err := os.OpenRoot(below)
	check(err)
	defer root.Close()
	for name, want := range map[string]string{"file": "opened", "dir": "opened", "link": "opened", "pipe": "irregular", "link to pipe": "irregular", "socket": "irregular",
		"link out": "refused", "none": "refused", "../outside": "refused"} {
		file, info, err := OpenBelow(root, name)
		got := "refused"
		switch {
		case errors.Is(err, ErrIrregular):
			got = "irregular"
		case err == nil:
			got = "opened"
			if info.Size() != 4 && !info.IsDir() {
				t.Errorf("%s has %d bytes", name, info.Size())
			}
			file.Close()
		}
		if got != want {
			t.Errorf("%s: %s (%v), want: %s", name, got, err, want)
		}
	}
}

// TestOpenBelowRace: a pipe that replaces a file between check and open does not block the reader either.
func TestOpenBelowRace(t *testing.T) {
	dir := t.TempDir()
	name := func(n string) string { return filepath.Join(dir, n) }
	if err := os.WriteFile(name("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(name("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var stop atomic.Bool
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for !stop.Load() {
			for _, which := range []string{"file", "pipe"} {
				_ = os.Link(name(which), name("new"))
				_ = os.Rename(name("new"), name("target"))
			}
		}
	})
	for range 20000 {
		file, info, err := OpenBelow(root, "target")
		if err != nil {
			continue
		}
		if !info.Mode().IsRegular() {
			t.Errorf("opened %s", info.Mode())
		}
		file.Close()
	}
	stop.Store(true)
	swapping.Wait()
}
