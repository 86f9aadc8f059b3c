package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// OpenPath opens a file of any type without any effect on it, so that it can be mounted.
const OpenPath = unix.O_PATH

type kernel struct{ table *table }

// System is the kernel of this host.
func System() Mounter { return kernel{&table{}} }

func (kernel) Tmpfs(dir, options string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	// Kernels before 6.3 do not know noswap.
	err := unix.Mount("tmpfs", dir, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", flags, options)
	}
	if err != nil {
		return fmt.Errorf("cannot mount tmpfs at %s: %w", dir, err)
	}
	return nil
}

func (kernel) Bind(source *os.File, target string) error {
	// The name in /proc leads to the open file, not to what its path means now.
	if err := unix.Mount(fmt.Sprintf("/proc/thread-self/fd/%d", source.Fd()), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot bind %s to %s: %w", source.Name(), target, err)
	}
	return nil
}

func (kernel) Unmount(target string) error { return unmount(target, unix.UMOUNT_NOFOLLOW) }

func (kernel) Force(target string) error {
	return unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_FORCE)
}

func unmount(target string, flags int) error {
	err := unix.Unmount(target, flags)
	if errors.Is(err, unix.EBUSY) { // a process uses it; the mount disappears with the last one
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot unmount %s: %w", target, err)
	}
	return nil
}

func (k kernel) IsMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	points, err := k.Below(path) // kernels before 5.8
	return slices.Contains(points, path), err
}

func (k kernel) Has(path string) (bool, error) { return k.table.has(path) }

func (kernel) Below(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	return parseMountinfo(data, strings.TrimSuffix(dir, "/")), nil
}

type symlinks struct{}

// SystemLinks are the symbolic links of this host, which tests of Windows' volumes use.
func SystemLinks() Links { return symlinks{} }

func (symlinks) Read(path string) (string, bool, error) { return readLink(path) }

func (symlinks) Remove(path string) error {
	if _, ok, err := readLink(path); err != nil || !ok {
		return err
	}
	return os.Remove(path)
}

// table is the mount table of the first reader's mount namespace. The kernel needs milliseconds to write that of a node with a thousand mounts,
// and says without a read whether it has changed (proc_pid_mounts(5), poll). It says so once for each open file, so that Go's poller must not
// know this one.
type table struct {
	mu   sync.Mutex
	file *int
	text bytes.Buffer
}

// has says whether something is mounted at path.
func (t *table) has(path string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(); err != nil {
		return false, fmt.Errorf("cannot list mounts: %w", err)
	}
	return slices.Contains(parseMountinfo(t.text.Bytes(), path), path), nil
}

// refresh reads the table if it has changed. A change between poll and read is read twice.
func (t *table) refresh() error {
	if t.file == nil {
		file, err := unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.file = &file
	} else if changed, err := changed(*t.file); err != nil || !changed {
		return err
	}
	err := t.read()
	if err != nil { // what was read is not the whole table
		err = errors.Join(err, unix.Close(*t.file))
		t.file = nil
	}
	return err
}

func (t *table) read() error {
	t.text.Reset()
	for buffer := make([]byte, 1<<16); ; {
		n, err := unix.Pread(*t.file, buffer, int64(t.text.Len()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0:
			return err
		default:
			t.text.Write(buffer[:n])
		}
	}
}

// changed asks the kernel whether something was mounted or unmounted since the file was opened or last asked about.
func changed(file int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(file), Events: unix.POLLPRI}} //nolint:gosec // a descriptor
	for {
		if _, err := unix.Poll(fds, 0); !errors.Is(err, unix.EINTR) {
			return fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0, err
		}
	}
}
