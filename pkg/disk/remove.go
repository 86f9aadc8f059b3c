package disk

import (
	"errors"
	"io/fs"
	"strconv"
)

// maxNested is how many nested directories Remove holds open.
const maxNested = 16

// RemoveAll removes path and everything below it, like os.RemoveAll, but holds few directories open at any depth: a pod's files must not exhaust the
// agent's descriptors. It removes links without following them. A missing path is not an error.
func RemoveAll(path string) error {
	top, err := openShelf(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil: // path is a file
		return removePath(path)
	}
	defer top.close()
	r := remover{top: top}
	for {
		before := r.removed + r.moved
		err := r.empty(top, 0)
		if err == nil && !r.left {
			return removePath(path)
		}
		if before == r.removed+r.moved { // no progress
			return errors.Join(err, removePath(path))
		}
		r.left = false
	}
}

// shelf is an open directory to remove entries from.
type shelf interface {
	// names lists some entries from the beginning; none: it is empty.
	names() ([]string, error)
	// remove removes a file or an empty directory; full: it is a non-empty directory.
	remove(name string) (full bool, err error)
	enter(name string) (shelf, error)
	// moveTo moves a directory elsewhere on the same file system.
	moveTo(name string, to shelf, as string) error
	close()
}

type remover struct {
	top            shelf
	removed, moved int  // progress
	names          int  // number of names tried at the top
	left           bool // something has been moved to the top
}

// empty removes all entries of s. It moves a too deeply nested directory to the top.
func (r *remover) empty(s shelf, depth int) error {
	var errs []error
	for {
		names, err := s.names()
		if err != nil || len(names) == 0 {
			return errors.Join(append(errs, err)...)
		}
		failed := 0
		for _, name := range names {
			if err := r.one(s, name, depth); err != nil {
				failed++
				errs = append(errs, err)
			}
		}
		if failed > 0 {
			return errors.Join(errs...)
		}
		if depth == 0 && r.left {
			return nil // the next pass finds it
		}
	}
}

func (r *remover) one(s shelf, name string, depth int) error {
	full, err := s.remove(name)
	switch {
	case err != nil:
		return err
	case !full:
		r.removed++
		return nil
	case depth >= maxNested:
		return r.lift(s, name)
	}
	in, err := s.enter(name)
	if err != nil {
		return err
	}
	err = r.empty(in, depth+1)
	in.close()
	if err != nil {
		return err
	}
	if full, err = s.remove(name); full {
		err = errNotEmpty // a process continues to write
	}
	if err == nil {
		r.removed++
	}
	return err
}

// lift moves a directory to the top, under an unused name.
func (r *remover) lift(s shelf, name string) error {
	for {
		r.names++
		err := s.moveTo(name, r.top, ".removed-"+strconv.Itoa(r.names))
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			r.moved++
			r.left = true
		}
		return err
	}
}

var errNotEmpty = errors.New("files are added to a directory while it is being removed")
