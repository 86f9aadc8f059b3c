package host

import (
	"errors"
	"os"
	"syscall"
)

// ErrIrregular says that something is neither a file nor a directory: a pipe, a socket, a device.
var ErrIrregular = errors.New("neither a file nor a directory")

// OpenBelow opens a file or a directory below root for reading, with what it was when it was opened. Others may write below root: what is
// neither is refused without being opened, since that may wait for ever or have an effect, and if it takes the name's place in that moment
// it is opened without waiting and closed again. No link leads out of root.
func OpenBelow(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !plainMode(info) {
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: ErrIrregular}
	}
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // Windows, which has no pipes among files, ignores the flag
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
