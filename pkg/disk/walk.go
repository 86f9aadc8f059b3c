package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/winkube/winkube/pkg/host"
)

// Limits of one walk, so that no tree costs more memory or descriptors than this.
const (
	// maxDepth is the maximum nesting of directories. Each takes 16 bytes of memory.
	maxDepth = 1 << 20
	// maxSeen is how many files with several names are remembered, so that each counts once. Beyond that each name counts as a fraction of its file.
	maxSeen = 1 << 16
	// look is the number of names between checks for a pause.
	look = 64
)

var (
	errTooDeep = fmt.Errorf("directories are more than %d levels deep", maxDepth)
	errMoved   = errors.New("a directory was moved while it was measured")
)

// Walk adds up the disk usage of the files below a directory, in pieces. It uses open directories and never joined paths, so that no path is too
// long. It follows no links, opens only directories and does not enter mounts. A file with several names counts once. It ignores files that vanish,
// skips unreadable ones and reports them by Unread.
type Walk struct {
	path string
	skip map[string]bool // entries of path to skip

	begun  bool
	device uint64
	parked []mark   // the outer directories, closed
	open   []folder // the inner ones, at most limit
	limit  int
	seen   map[identity]struct{}
	bytes  float64 // may contain fractions of files
	files  float64

	unread int
	why    error
}

type identity struct{ device, inode uint64 }

// space is a file's usage.
type space struct {
	bytes                uint64
	device, inode, links uint64
}

// entry is one name in a directory.
type entry struct {
	name string // only of a directory
	space
	directory bool
	mount     bool  // a mount point, or looking at it would mount something
	err       error // why nothing else is known about it
}

// folder is an open directory.
type folder interface {
	// next returns the next entry, or io.EOF at the end.
	next() (entry, error)
	// enter opens a directory in this one.
	enter(name string) (folder, error)
	// park closes this one. The mark leads back to it from a directory in it.
	park() (mark, error)
	// above opens the parent directory if it is still that of the mark, and continues where it was left.
	above(m mark) (folder, error)
	close()
}

// NewWalk returns a Walk of the directory at path, without entries of path named in skip.
func NewWalk(path string, skip ...string) *Walk {
	w := &Walk{path: path, limit: maxOpen, seen: map[identity]struct{}{}, skip: map[string]bool{}}
	for _, name := range skip {
		w.skip[name] = true
	}
	return w
}

// Measure walks the whole directory without pause.
func Measure(path string) (Amount, error) {
	w := NewWalk(path)
	sum, _, err := w.Step(func(host.Disk) bool { return false })
	if err == nil {
		_, err = w.Unread()
	}
	return Amount{sum.Used, sum.InodesUsed}, err
}

// Step is a Pass: it continues until the walk is complete, or until soFar, which gets the current sum, requests a pause. An error means that the
// directory itself cannot be read.
func (w *Walk) Step(soFar func(host.Disk) (pause bool)) (sum host.Disk, done bool, err error) {
	if !w.begun {
		top, own, err := openFolder(w.path)
		if err != nil {
			return w.sum(), true, err
		}
		w.begun, w.device, w.open = true, own.device, append(w.open, top)
		w.bytes, w.files = float64(own.bytes), 1
	}
	for n := 1; len(w.open) > 0; n++ {
		if n%look == 0 && soFar(w.sum()) {
			return w.sum(), false, nil
		}
		e, err := w.open[len(w.open)-1].next()
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist):
			w.up()
		case err != nil:
			w.fail(err)
			w.up()
		default:
			w.take(e)
		}
	}
	return w.sum(), true, nil
}

// Unread returns the number of unreadable names so far, and why the first could not be read; Step continues without them.
func (w *Walk) Unread() (int, error) { return w.unread, w.why }

func (w *Walk) sum() host.Disk {
	return host.Disk{Used: uint64(w.bytes), InodesUsed: uint64(w.files + 0.5)}
}

func (w *Walk) fail(err error) {
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	w.unread++
	if w.why == nil {
		w.why = err
	}
}

// take counts a name, and enters it if it is a directory.
func (w *Walk) take(e entry) {
	top := len(w.parked) == 0 && len(w.open) == 1
	switch {
	case e.err != nil:
		w.fail(e.err)
		return
	case e.mount || e.device != w.device || top && e.directory && w.skip[e.name]:
		return
	case !e.directory:
		w.count(e.space)
		return
	}
	w.bytes += float64(e.bytes)
	w.files++
	if len(w.parked)+len(w.open) >= maxDepth {
		w.fail(errTooDeep)
		return
	}
	in, err := w.open[len(w.open)-1].enter(e.name)
	if err != nil {
		w.fail(err)
		return
	}
	if len(w.open) == w.limit {
		m, err := w.open[0].park()
		if err != nil {
			in.close()
			w.fail(err)
			return
		}
		w.parked = append(w.parked, m)
		w.open = append(w.open[:0], w.open[1:]...)
	}
	w.open = append(w.open, in)
}

// count adds a non-directory.
func (w *Walk) count(s space) {
	part := 1.0
	if s.links > 1 {
		id := identity{s.device, s.inode}
		if _, known := w.seen[id]; known {
			return
		}
		if len(w.seen) < maxSeen {
			w.seen[id] = struct{}{}
		} else {
			part = 1 / float64(s.links)
		}
	}
	w.bytes += part * float64(s.bytes)
	w.files += part
}

// up leaves the innermost directory.
func (w *Walk) up() {
	last := len(w.open) - 1
	top := w.open[last]
	w.open = w.open[:last]
	if outer := len(w.parked) - 1; last == 0 && outer >= 0 {
		above, err := top.above(w.parked[outer])
		if err == nil {
			w.parked, w.open = w.parked[:outer], append(w.open, above)
		} else { // the way back is lost
			w.unread, w.parked = w.unread+1, nil
			if w.why == nil {
				w.why = err
			}
		}
	}
	top.close()
}
