// Package filewatch reports changes of files in watched directories. It is the only user of fsnotify.
//
//	host's event -> Watcher's goroutine -> Changed wakes the owner -> Take
//
// One goroutine always receives, whatever the owner does meanwhile. On Windows, fsnotify's Add waits for the thread
// that reads the host's events, and that thread waits until its events are received: an owner that receives them
// itself never returns from Add (fsnotify backend_windows.go, AddWith and readEvents).
package filewatch

import (
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/winkube/winkube/pkg/wake"
)

// maxPending is how many paths a Watcher remembers until the owner takes them. Beyond them Take reports a loss.
const maxPending = 1024

// Change is what happened to one path since the last Take.
type Change struct {
	Path string
	// Gone: the path was removed or renamed, and may exist again since.
	Gone bool
	// Attributes: nothing but mode, owner or times has changed.
	Attributes bool
}

// Watcher watches files and directories, the latter without their subdirectories. Its methods are safe for concurrent use.
// Make it with New; its owner must close it.
type Watcher struct {
	inner     *fsnotify.Watcher
	changed   wake.Signal
	receiving sync.WaitGroup

	mu      sync.Mutex
	pending map[string]fsnotify.Op
	lost    error
}

// New makes a Watcher that watches nothing. It fails if this host has no watch left (on Linux,
// fs.inotify.max_user_instances).
func New() (*Watcher, error) {
	inner, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w := &Watcher{inner: inner, changed: wake.New(), pending: map[string]fsnotify.Op{}}
	w.receiving.Go(w.receive)
	return w, nil
}

// Add watches path, which must exist. It is idempotent.
func (w *Watcher) Add(path string) error { return w.inner.Add(path) }

// Remove ends the watch of path. It returns an error if path is not watched.
func (w *Watcher) Remove(path string) error { return w.inner.Remove(path) }

// Watched returns the paths that are watched, in no order. A path that was removed from the host is not among them.
func (w *Watcher) Watched() []string { return w.inner.WatchList() }

// Close ends all watches and returns when the Watcher's goroutine has ended.
func (w *Watcher) Close() {
	_ = w.inner.Close() // it always returns nil
	w.receiving.Wait()
}

// Changed receives after something has changed or was lost. Changes before the owner receives count as one: Take has them all.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Take returns what has changed since the last Take, in no order, and clears it. If err is not nil, changes were
// lost, and the owner must look at everything that it watches.
func (w *Watcher) Take() (changes []Change, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, op := range w.pending {
		changes = append(changes, Change{Path: path, Gone: op.Has(fsnotify.Remove) || op.Has(fsnotify.Rename), Attributes: op == fsnotify.Chmod})
	}
	err = w.lost
	w.pending, w.lost = map[string]fsnotify.Op{}, nil
	return changes, err
}

func (w *Watcher) receive() {
	events, errs := w.inner.Events, w.inner.Errors
	for events != nil || errs != nil {
		select {
		case event, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			w.add(event)
		case err, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			w.lose(err)
		}
		w.changed.Send()
	}
}

func (w *Watcher) add(event fsnotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.pending[event.Name]; !known && len(w.pending) == maxPending {
		w.lost = fmt.Errorf("more than %d files changed before the changes were read: %w", maxPending, fsnotify.ErrEventOverflow)
		return
	}
	w.pending[event.Name] |= event.Op
}

func (w *Watcher) lose(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = err
}
