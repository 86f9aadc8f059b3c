package disk

import (
	"errors"
	"io/fs"
	"strconv"
)

// maxNested is how many directories Remove holds open within each other.
const maxNested = 16

// RemoveAll removes path and everything below it, as os.RemoveAll does, but holds few directories open however deep they lie: what a pod
// has made must not use up the agent's files. Links are removed and not followed. Nothing there is no error.
func RemoveAll(path string) error {
	top, err := openShelf(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil: // a file
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
		if before == r.removed+r.moved { // nothing got better
			return errors.Join(err, removePath(path))
		}
		r.left = false
	}
}

// shelf is an open directory from which things are removed.
type shelf interface {
	// names lists some of what is in it from its beginning on; none: it is empty.
	names() ([]string, error)
	// remove removes a file or an empty directory; full: it is a directory with something in it.
	remove(name string) (full bool, err error)
	enter(name string) (shelf, error)
	// moveTo moves a directory elsewhere on the same file system.
	moveTo(name string, to shelf, as string) error
	close()
}

type remover struct {
	top            shelf
	removed, moved int  // what has got better
	names          int  // that were tried at the top
	left           bool // something has been moved to the top
}

// empty removes all that is in s. A directory that lies too deep is moved to the top, where it does not.
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
		err = errNotEmpty // a process keeps writing
	}
	if err == nil {
		r.removed++
	}
	return err
}

// lift moves a directory to the top, under a name that nothing has there.
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
