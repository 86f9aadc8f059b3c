package disk

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const deleted = " (deleted)"

// FindRemoved returns a Parts.Removed. processes lists all processes of a container by its first one; proc is /proc. It misses files held only by a
// message between sockets, or by a thread with separate files.
func FindRemoved(proc string, processes func(pid int) ([]int, error)) func([]Box) ([]Removed, error) {
	return func(boxes []Box) ([]Removed, error) {
		f := finder{proc: proc, seen: map[identity]bool{}}
		var errs []error
		for _, box := range boxes {
			if box.PID <= 0 {
				continue
			}
			pids, err := processes(box.PID)
			errs = append(errs, err)
			for _, pid := range pids {
				errs = append(errs, f.process(box.ID, pid))
			}
		}
		for i, err := range errs {
			if vanished(err) {
				errs[i] = nil
			}
		}
		return f.found, errors.Join(errs...)
	}
}

// vanished says that a process ended during its inspection.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}

type finder struct {
	proc  string
	seen  map[identity]bool
	found []Removed
	// mounts is the mountinfo of the current process; nil: not read yet.
	mounts []byte
}

func (f *finder) process(container string, pid int) error {
	f.mounts = nil
	dir := filepath.Join(f.proc, strconv.Itoa(pid))
	list, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	defer list.Close()
	for {
		names, err := list.Readdirnames(256)
		for _, name := range names {
			link := filepath.Join(dir, "fd", name)
			// Reading a link never waits for a file system, unlike examining its target. The file's name may be too long for it.
			target, err := os.Readlink(link)
			if err == nil && strings.HasSuffix(target, deleted) || errors.Is(err, unix.ENAMETOOLONG) {
				f.examine(container, dir, link)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	for _, name := range mappedRemoved(maps) {
		f.examine(container, dir, filepath.Join(dir, "map_files", name))
	}
	return err
}

// examine adds the file behind link, if it is a removed one. It ignores files that are gone or that we may not see.
func (f *finder) examine(container, process, link string) {
	fd, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0) // regular files and devices alike: O_PATH does not access them
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Nlink > 0 {
		return
	}
	id := identity{uint64(st.Dev), st.Ino} //nolint:unconvert // differs by architecture
	if f.seen[id] {
		return
	}
	f.seen[id] = true
	info, err := os.ReadFile("/proc/thread-self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return
	}
	if f.mounts == nil {
		if f.mounts, err = os.ReadFile(filepath.Join(process, "mountinfo")); err != nil {
			return
		}
	}
	if m, ok := mountOf(bytes.TrimSpace(f.mounts), mountID(info)); ok {
		f.found = append(f.found, Removed{Container: container, Bytes: uint64(st.Blocks) * 512, mountPoint: m})
	}
}

// mountOf finds the line of a /proc/PID/mountinfo with that ID (proc_pid_mountinfo(5)).
func mountOf(mountinfo []byte, id string) (m mountPoint, ok bool) {
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 10 || fields[0] != id {
			continue
		}
		for i := 6; i+1 < len(fields); i++ {
			if fields[i] == "-" {
				return mountPoint{fields[i+1], unescape(fields[3]), unescape(fields[4])}, true
			}
		}
	}
	return m, false
}

// unescape undoes the kernel's \ooo escapes for space, tab, newline and backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountID reads the mount ID from a /proc/PID/fdinfo/FD.
func mountID(fdinfo []byte) string {
	for line := range bytes.Lines(fdinfo) {
		if value, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// mappedRemoved returns the address ranges of deleted files in a /proc/PID/maps, named as in /proc/PID/map_files.
func mappedRemoved(maps []byte) (ranges []string) {
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(line, []byte(" (deleted)\n")) {
			continue
		}
		if fields := bytes.Fields(line); len(fields) > 5 && string(fields[4]) != "0" {
			ranges = append(ranges, mapName(string(fields[0])))
		}
	}
	return ranges
}

// mapName removes leading zeros from the addresses of a range.
func mapName(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	zeros := func(s string) string {
		if t := strings.TrimLeft(s, "0"); t != "" {
			return t
		}
		return "0"
	}
	return zeros(from) + "-" + zeros(to)
}
