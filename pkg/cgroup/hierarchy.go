package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// mount is one hierarchy of cgroups.
type mount struct {
	controllers string // ",cpu,cpuacct,"; of version 2 ","
	root, dir   string // the cgroup that is seen in dir
}

func (m mount) unified() bool { return m.controllers == "," }
func (m mount) has(controller string) bool {
	return strings.Contains(m.controllers, ","+controller+",")
}

// parseMountinfo finds the hierarchies in /proc/self/mountinfo (proc(5)). A name of version 1 such as "name=systemd" is kept. Of several
// mounts of one hierarchy the first counts.
func parseMountinfo(text string) (mounts []mount) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		first, last := strings.Fields(before), strings.Fields(after)
		if !ok || len(first) < 5 || len(last) < 3 {
			continue
		}
		m := mount{",", first[3], first[4]}
		switch last[0] {
		case "cgroup2":
		case "cgroup":
			m.controllers = controllersOf(last[2])
		default:
			continue
		}
		if !slices.ContainsFunc(mounts, func(o mount) bool { return o.controllers == m.controllers }) {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// controllersOf takes the options of a super block, which are not all controllers: "rw,cpu,cpuacct".
func controllersOf(options string) string {
	names := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" })
	return "," + strings.Join(names, ",") + ","
}

// parseCgroup gives the path of a controller from /proc/PID/cgroup (cgroups(7)); where no hierarchy of version 1 has it, that of
// version 2, whose controller is "".
func parseCgroup(text, controller string) (found, where string, ok bool) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3 || !strings.HasPrefix(parts[2], "/"):
		case parts[1] == "" && !ok:
			where, ok = parts[2], true
		case parts[1] != "" && strings.Contains(","+parts[1]+",", ","+controller+","):
			return controller, parts[2], true
		}
	}
	return "", where, ok
}

// below is where a cgroup is seen in a mount.
func (m mount) below(where string) (string, bool) {
	switch rest, below := strings.CutPrefix(where, strings.TrimSuffix(m.root, "/")+"/"); {
	case below:
		return path.Join(m.dir, path.Clean("/"+rest)), true
	case where == m.root:
		return m.dir, true
	}
	return "", false
}

// hierarchy finds the one of a controller; of version 2 there is only one.
func (t *Tree) hierarchy(controller string) (mount, error) {
	for _, m := range t.mounts {
		if t.v2 && m.unified() || !t.v2 && m.has(controller) {
			return m, nil
		}
	}
	return mount{}, fmt.Errorf("cannot find the cgroups of controller %s: %w", controller, fs.ErrNotExist)
}

// written are the hierarchies in which cgroups are made. In others the engine makes its own.
func (t *Tree) written() []mount {
	var out []mount
	for _, m := range t.mounts {
		limits := m.has("cpu") || m.has("memory") || m.has("pids") || m.has("hugetlb") || m.has("cpuset")
		if t.systemd != nil { // it knows neither
			limits = m.has("cpu") || m.has("memory")
		}
		if t.v2 && m.unified() || !t.v2 && limits {
			out = append(out, m)
		}
	}
	return out
}

// where is a cgroup's path from the top of the hierarchies.
func (t *Tree) where(g Group) string {
	all := slices.Concat(t.root, g)
	if t.systemd == nil {
		return "/" + path.Join(all...)
	}
	where := "/"
	for i := range all {
		where = path.Join(where, sliceName(all[:i+1]))
	}
	return where
}

// dir is where a cgroup of ours is seen.
func (t *Tree) dir(m mount, g Group) string {
	dir, ok := m.below(t.where(g))
	if !ok { // a mount of some other part of the hierarchy: as if it were of the whole
		dir = path.Join(m.dir, t.where(g))
	}
	return dir
}

// elements cuts a path.
func elements(where string) Group {
	return slices.DeleteFunc(strings.Split(path.Clean("/"+where), "/"), func(e string) bool { return e == "" })
}

// files is what of a file system cgroups need. Errors are of package os or syscall.
type files interface {
	read(path string) (string, error)
	write(path, text string) error // of an existing file, in one call
	make(dir string) error
	remove(dir string) error
	list(dir string) ([]string, error) // the directories in dir
}

// disk is the real one. It does without package os, which would make each of the kernel's files known to the poller: five system calls
// more for one small answer.
type disk struct{}

func (disk) read(path string) (string, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer syscall.Close(fd)
	var text []byte
	buffer := make([]byte, 4096)
	for {
		n, err := syscall.Read(fd, buffer)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		case n <= 0:
			return string(text), nil
		default:
			text = append(text, buffer[:n]...)
		}
	}
}

func (disk) write(path, text string) error {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer syscall.Close(fd)
	n, err := syscall.Write(fd, []byte(text))
	for errors.Is(err, syscall.EINTR) {
		n, err = syscall.Write(fd, []byte(text))
	}
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func (disk) make(dir string) error   { return os.Mkdir(dir, 0o755) }
func (disk) remove(dir string) error { return os.Remove(dir) }

func (disk) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// gone says that a cgroup was removed while it was read.
func gone(err error) bool { return errors.Is(err, syscall.ENODEV) }
