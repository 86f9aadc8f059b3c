package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mark is a position in a closed directory.
type mark struct {
	inode  uint64
	offset int64
}

// maxOpen is how many directories a walk holds open.
const maxOpen = 32

// buffers hold entries as getdents64(2) returns them.
var buffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// directory is a folder on Linux.
type directory struct {
	fd      int
	buffer  *[16 << 10]byte
	at, end int
	offset  int64 // after the last returned name
}

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

func openFolder(path string) (folder, space, error) {
	d, err := openAt(unix.AT_FDCWD, path)
	if err != nil {
		return nil, space{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	e := d.stat("", unix.AT_EMPTY_PATH)
	if e.err != nil {
		d.close()
		return nil, space{}, &fs.PathError{Op: "stat", Path: path, Err: e.err}
	}
	return d, e.space, nil
}

// examine returns the usage of the file at path.
func examine(path string) (space, error) {
	e := (&directory{fd: unix.AT_FDCWD}).stat(path, 0)
	return e.space, e.err
}

func openAt(at int, name string) (*directory, error) {
	for {
		fd, err := unix.Openat(at, name, openFlags, 0)
		if err == nil {
			return &directory{fd: fd, buffer: buffers.Get().(*[16 << 10]byte)}, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// Fields of struct linux_dirent64 (getdents64(2)).
const (
	direntOffset = 8
	direntLength = 16
	direntName   = 19
)

func (d *directory) next() (entry, error) {
	for {
		if d.at >= d.end {
			n, err := unix.ReadDirent(d.fd, d.buffer[:])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return entry{}, err
			}
			if n <= 0 {
				return entry{}, io.EOF
			}
			d.at, d.end = 0, n
		}
		record := d.buffer[d.at:d.end]
		length := int(binary.NativeEndian.Uint16(record[direntLength:]))
		d.offset = int64(binary.NativeEndian.Uint64(record[direntOffset:]))
		d.at += length
		name := record[direntName:length]
		name = name[:bytes.IndexByte(name, 0)+1]
		if s := string(name); s == ".\x00" || s == "..\x00" {
			continue
		}
		e := d.statName(name)
		if e.directory {
			e.name = string(name[:len(name)-1])
		}
		return e, nil
	}
}

func (d *directory) stat(name string, flags int) entry {
	return d.statName(append([]byte(name), 0), flags)
}

// statName examines a zero-terminated name without opening it, following it or triggering an automount.
func (d *directory) statName(name []byte, more ...int) entry {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	for _, f := range more {
		flags |= f
	}
	var st unix.Statx_t
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(d.fd), uintptr(unsafe.Pointer(&name[0])), uintptr(flags),
			unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(&st)), 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINTR {
			return entry{err: errno}
		}
	}
	return entry{
		space: space{
			bytes: st.Blocks * 512, inode: st.Ino, links: uint64(st.Nlink), device: unix.Mkdev(st.Dev_major, st.Dev_minor),
		},
		directory: st.Mode&unix.S_IFMT == unix.S_IFDIR,
		mount:     st.Attributes&st.Attributes_mask&(unix.STATX_ATTR_MOUNT_ROOT|unix.STATX_ATTR_AUTOMOUNT) != 0,
	}
}

func (d *directory) enter(name string) (folder, error) {
	in, err := openAt(d.fd, name)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // replaced by something else meanwhile
			err = fs.ErrNotExist
		}
		return nil, err
	}
	return in, nil
}

func (d *directory) park() (mark, error) {
	e := d.stat("", unix.AT_EMPTY_PATH)
	if e.err != nil {
		return mark{}, e.err
	}
	d.close()
	return mark{e.inode, d.offset}, nil
}

func (d *directory) above(m mark) (folder, error) {
	up, err := openAt(d.fd, "..")
	if err != nil {
		return nil, err
	}
	here, there := d.stat("", unix.AT_EMPTY_PATH), up.stat("", unix.AT_EMPTY_PATH)
	if err = errors.Join(here.err, there.err); err == nil && (there.inode != m.inode || there.device != here.device) {
		err = errMoved
	}
	if err == nil {
		_, err = unix.Seek(up.fd, m.offset, io.SeekStart)
	}
	if err != nil {
		up.close()
		return nil, err
	}
	return up, nil
}

func (d *directory) close() {
	if d.buffer == nil {
		return
	}
	buffers.Put(d.buffer)
	d.buffer = nil
	_ = os.NewSyscallError("close", unix.Close(d.fd))
}
