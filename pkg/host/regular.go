package host

import (
	"errors"
	"os"
	"syscall"
)

// ErrIrregular says that a name is neither a file nor a directory, but a pipe, a socket or a device.
var ErrIrregular = errors.New("neither a file nor a directory")

// OpenBelow opens a file or a directory below root for reading, and returns its FileInfo at that time. Others may write
// below root, so anything else is refused without being opened: opening it could block forever or have side effects. If
// it replaces the file at that moment, it is opened without blocking and closed again. No link leads out of root.
func OpenBelow(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !plainMode(info) {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: ErrIrregular}
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // Windows, where pipes are not files, ignores the flag
	if err != nil {
		return nil, nil, err
	}
	if info, err = file.Stat(); err == nil && !plainMode(info) {
		err = &os.PathError{Op: "open", Path: name, Err: ErrIrregular}
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func plainMode(info os.FileInfo) bool { return info.Mode().IsRegular() || info.IsDir() }
