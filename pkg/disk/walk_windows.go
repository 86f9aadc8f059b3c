package disk

import (
	"errors"
	"io/fs"
	"os"
)

// mark is empty: directories stay open here.
type mark struct{}

// maxOpen is how many directories a walk holds open: all of them, since a path has at most 32,767 characters.
const maxOpen = 1 << 15

// directory is a folder on Windows. Directory links of any kind count as files and are not entered.
type directory struct {
	root  *os.Root
	list  *os.File
	batch []fs.DirEntry
}

func openFolder(path string) (folder, space, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, space{}, err
	}
	d, err := newDirectory(root)
	return d, space{}, err
}

// examine returns the usage of the file at path.
func examine(path string) (space, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return space{}, err
	}
	return space{bytes: uint64(info.Size())}, nil
}

func newDirectory(root *os.Root) (folder, error) {
	list, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &directory{root: root, list: list}, nil
}

// next uses a file's size as its disk usage: directory entries have nothing better.
func (d *directory) next() (entry, error) {
	if len(d.batch) == 0 {
		var err error
		if d.batch, err = d.list.ReadDir(256); err != nil {
			return entry{}, err
		}
	}
	e := d.batch[0]
	d.batch = d.batch[1:]
	info, err := e.Info()
	if err != nil {
		return entry{err: err}, nil
	}
	if e.IsDir() {
		return entry{name: e.Name(), directory: true}, nil
	}
	return entry{space: space{bytes: uint64(info.Size())}}, nil
}

func (d *directory) enter(name string) (folder, error) {
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return newDirectory(root)
}

func (d *directory) park() (mark, error) { return mark{}, errTooDeep }

func (d *directory) above(mark) (folder, error) { return nil, errMoved }

func (d *directory) close() {
	_ = d.list.Close()
	_ = d.root.Close()
}
