package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/winkube/winkube/pkg/host"
)

// Bounds of one walk, so that no tree costs more memory or descriptors than this.
const (
	// maxDepth is how many directories may lie within each other. Each takes 16 bytes of memory.
	maxDepth = 1 << 20
	// maxSeen is how many files with several names are remembered, so that each counts once. Beyond that each name counts for its part.
	maxSeen = 1 << 16
	// look is after how many names a walk asks whether it should pause.
	look = 64
)

var (
	errTooDeep = fmt.Errorf("directories are more than %d levels deep", maxDepth)
	errMoved   = errors.New("a directory was moved while it was measured")
)

// Walk adds up what the files below a directory take on disk, a piece at a time. It goes by open directories and never by joined paths,
// so that no path is too long for it; it follows no link, opens nothing but directories and stays out of what is mounted below. A file
// with several names counts once. What vanishes meanwhile does not count; what cannot be read is left out and told by Unread.
type Walk struct {
	path string
	skip map[string]bool // names in path itself that are left out

	begun  bool
	device uint64
	parked []mark   // the outer directories, closed
	open   []folder // the inner ones, at most limit
	limit  int
	seen   map[identity]struct{}
	bytes  float64 // parts of files too
	files  float64

	unread int
	why    error
}

type identity struct{ device, inode uint64 }

// space is what a file takes.
type space struct {
	bytes                uint64
	device, inode, links uint64
}

// entry is one name in a directory.
type entry struct {
	name string // of a directory alone
	space
	directory bool
	mount     bool  // something is mounted here, or would be by looking at it
	err       error // why nothing else is known of it
}

// folder is an open directory.
type folder interface {
	// next gives one name after the other, at the end io.EOF.
	next() (entry, error)
	// enter opens a directory in this one.
	enter(name string) (folder, error)
	// park closes this one. The mark leads back to it from a directory in it.
	park() (mark, error)
	// above opens the directory above this one if it is still that of the mark, and goes on where that was left.
	above(m mark) (folder, error)
	close()
}

// NewWalk makes a walk of the directory at path, without what has one of the names skip in it.
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

// Step is a Pass: it goes on until all is counted, or until soFar, which gets the sum so far, requests a pause. An error means that
// the directory itself cannot be read.
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

// Unread says how many names could not be read so far, and why not the first of them; Step goes on without them.
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

// take counts a name, and goes into it if it is a directory.
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

// count adds a file that is no directory.
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
