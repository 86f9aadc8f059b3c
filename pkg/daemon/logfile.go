package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
)

// rotated is a log file that is rotated when it is full: FILE becomes FILE.1, that FILE.2 and so on, and the oldest is deleted. If a reader keeps
// Windows from renaming the file, it continues to grow, and rotation is retried after another limit bytes.
type rotated struct {
	path  string
	limit int64 // bytes; 0: none
	keep  int   // number of files, at least 1

	mu   sync.Mutex
	file *os.File
	size int64 // since the last attempt
}

// open continues an existing file.
func (r *rotated) open() error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	r.file, r.size = file, info.Size()
	return nil
}

// Write implements io.Writer. It never splits a line between files. Lines that cannot be written go to stderr, since klog ignores errors.
func (r *rotated) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := r.write(line)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s%v\n", line, err)
	}
	return n, err
}

func (r *rotated) write(line []byte) (int, error) {
	if r.file == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	if r.limit > 0 && r.size > 0 && r.size+int64(len(line)) > r.limit {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := r.file.Write(line)
	r.size += int64(n)
	return n, err
}

// rotate fails only if no file can be opened afterwards.
func (r *rotated) rotate() error {
	err := r.file.Close()
	r.file = nil
	if err != nil {
		return err
	}
	moved := os.Remove(r.numbered(r.keep - 1))
	if errors.Is(moved, fs.ErrNotExist) {
		moved = nil
	}
	for i := r.keep - 2; i >= 0 && moved == nil; i-- {
		if err := os.Rename(r.numbered(i), r.numbered(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			moved = err
		}
	}
	if err := r.open(); err != nil {
		return err
	}
	if moved != nil {
		r.size = 0
		fmt.Fprintf(r.file, "the log cannot be rotated now: %v\n", moved)
	}
	return nil
}

// numbered is the name of the i-th file; 0 is the current one.
func (r *rotated) numbered(i int) string {
	if i == 0 {
		return r.path
	}
	return r.path + "." + strconv.Itoa(i)
}
