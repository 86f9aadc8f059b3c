package disk

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// opened is a shelf on Linux.
type opened struct{ *directory }

func openShelf(path string) (shelf, error) {
	d, err := openAt(unix.AT_FDCWD, path)
	if err != nil {
		return nil, err
	}
	return opened{d}, nil
}

func removePath(path string) error {
	err := unix.Unlink(path)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Rmdir(path)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "remove", Path: path, Err: err}
}

func (o opened) names() (names []string, err error) {
	if _, err := unix.Seek(o.fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	for len(names) == 0 {
		n, err := unix.ReadDirent(o.fd, o.buffer[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
		}
		_, _, names = unix.ParseDirent(o.buffer[:n], -1, nil)
	}
	return names, nil
}

func (o opened) remove(name string) (full bool, err error) {
	err = unix.Unlinkat(o.fd, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(o.fd, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
		return true, nil
	}
	return false, &fs.PathError{Op: "remove", Path: name, Err: err}
}

func (o opened) enter(name string) (shelf, error) {
	d, err := openAt(o.fd, name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return opened{d}, nil
}

func (o opened) moveTo(name string, to shelf, as string) error {
	if err := unix.Renameat2(o.fd, name, to.(opened).fd, as, unix.RENAME_NOREPLACE); err != nil {
		return &fs.PathError{Op: "rename", Path: name, Err: err}
	}
	return nil
}
