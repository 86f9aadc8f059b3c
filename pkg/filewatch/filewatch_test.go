package filewatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

func newWatcher(t *testing.T, dirs ...string) *Watcher {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	for _, dir := range dirs {
		if err := w.Add(dir); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// until takes changes until enough says so.
func until(t *testing.T, w *Watcher, enough func(all map[string]Change, lost error) bool) {
	t.Helper()
	all := map[string]Change{}
	deadline := time.After(time.Minute)
	for {
		select {
		case <-w.Changed():
		case <-deadline:
			t.Fatalf("changes so far: %v", all)
		}
		changes, err := w.Take()
		for _, c := range changes {
			all[filepath.Base(c.Path)] = c
		}
		if enough(all, err) {
			return
		}
	}
}

func write(t *testing.T, path ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path...), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestChanges(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "old")
	w := newWatcher(t, dir)
	if again := w.Add(dir); again != nil {
		t.Error("Add is not idempotent:", again)
	}
	write(t, dir, "new")
	until(t, w, func(all map[string]Change, _ error) bool {
		return all["new"] == Change{Path: filepath.Join(dir, "new")}
	})
	if err := os.Remove(filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	until(t, w, func(all map[string]Change, _ error) bool { return all["old"].Gone })
	if changes, err := w.Take(); len(changes) > 0 || err != nil {
		t.Errorf("taken twice: %v, %v", changes, err)
	}
	if got := w.Watched(); !slices.Equal(got, []string{dir}) {
		t.Errorf("watched: %v", got)
	}
	if err := w.Remove(dir); err != nil {
		t.Error(err)
	}
	if got := w.Watched(); len(got) > 0 {
		t.Errorf("watched after Remove: %v", got)
	}
	if err := w.Remove(dir); err == nil {
		t.Error("a path that is not watched was removed")
	}
	if err := w.Add(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing path was added")
	}
}

// TestAddWhileChangesWait: the owner is in Add and receives nothing while more changes than any buffer holds arrive.
func TestAddWhileChangesWait(t *testing.T) {
	dir := t.TempDir()
	w := newWatcher(t, dir)
	done := make(chan error, 1)
	go func() {
		var all error
		for i := range 300 {
			sub := filepath.Join(dir, fmt.Sprint("d", i))
			all = errors.Join(all, os.Mkdir(sub, 0o700), w.Add(sub), os.WriteFile(filepath.Join(sub, "f"), nil, 0o600))
		}
		done <- all
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Add waits for its own caller")
	}
	until(t, w, func(all map[string]Change, lost error) bool { return len(all) > 0 || lost != nil })
}

func TestAttributesAndLoss(t *testing.T) {
	w := newWatcher(t)
	w.add(fsnotify.Event{Name: "a", Op: fsnotify.Chmod})
	w.add(fsnotify.Event{Name: "b", Op: fsnotify.Chmod})
	w.add(fsnotify.Event{Name: "b", Op: fsnotify.Write})
	changes, err := w.Take()
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	if want := []Change{{Path: "a", Attributes: true}, {Path: "b"}}; err != nil || !slices.Equal(changes, want) {
		t.Errorf("got %v, %v, want %v", changes, err, want)
	}
	for i := range maxPending + 1 {
		w.add(fsnotify.Event{Name: fmt.Sprint(i), Op: fsnotify.Create})
	}
	if changes, err = w.Take(); len(changes) != maxPending || !errors.Is(err, fsnotify.ErrEventOverflow) {
		t.Errorf("%d changes, %v", len(changes), err)
	}
	w.lose(errors.New("boom"))
	if changes, err = w.Take(); len(changes) > 0 || err == nil || err.Error() != "boom" {
		t.Errorf("%v, %v", changes, err)
	}
	if _, err = w.Take(); err != nil {
		t.Error("a loss was reported twice:", err)
	}
}

// TestClose: the goroutine ends, however many changes wait.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		write(t, dir, fmt.Sprint(i))
	}
	w.Close()
	if err := w.Add(dir); err == nil {
		t.Error("a closed Watcher accepts a path")
	}
}
