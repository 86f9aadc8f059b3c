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

// mount is one mounted hierarchy of cgroups.
type mount struct {
	controllers string // ",cpu,cpuacct,"; "," for v2
	root, dir   string // root is the cgroup that is mounted at dir
}

func (m mount) unified() bool { return m.controllers == "," }
func (m mount) has(controller string) bool {
	return strings.Contains(m.controllers, ","+controller+",")
}

// parseMountinfo finds the hierarchies in /proc/self/mountinfo (proc(5)). It keeps v1 names such as "name=systemd". If a hierarchy has
// several mounts, the first counts.
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

// controllersOf extracts the controllers from the options of a super block: "rw,cpu,cpuacct".
func controllersOf(options string) string {
	names := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" })
	return "," + strings.Join(names, ",") + ","
}

// parseCgroup returns the path of a controller from /proc/PID/cgroup (cgroups(7)). If no v1 hierarchy has the controller, it returns that
// of v2, whose controller is "".
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

// below is the path of a cgroup in a mount.
func (m mount) below(where string) (string, bool) {
	switch rest, below := strings.CutPrefix(where, strings.TrimSuffix(m.root, "/")+"/"); {
	case below:
		return path.Join(m.dir, path.Clean("/"+rest)), true
	case where == m.root:
		return m.dir, true
	}
	return "", false
}

// hierarchy finds a controller's hierarchy; v2 has only one.
func (t *Tree) hierarchy(controller string) (mount, error) {
	for _, m := range t.mounts {
		if t.v2 && m.unified() || !t.v2 && m.has(controller) {
			return m, nil
		}
	}
	return mount{}, fmt.Errorf("cannot find the cgroups of controller %s: %w", controller, fs.ErrNotExist)
}

// written are the hierarchies in which we create cgroups. In the others, the engine creates its own.
func (t *Tree) written() []mount {
	var out []mount
	for _, m := range t.mounts {
		limits := m.has("cpu") || m.has("memory") || m.has("pids") || m.has("hugetlb") || m.has("cpuset")
		if t.systemd != nil { // systemd supports neither pids nor hugetlb
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

// dir is the directory of one of our cgroups.
func (t *Tree) dir(m mount, g Group) string {
	dir, ok := m.below(t.where(g))
	if !ok { // the mount shows another part of the hierarchy: treat it as a mount of the whole
		dir = path.Join(m.dir, t.where(g))
	}
	return dir
}

// elements splits a path.
func elements(where string) Group {
	return slices.DeleteFunc(strings.Split(path.Clean("/"+where), "/"), func(e string) bool { return e == "" })
}

// files is the file system operations that cgroups need. Errors are from package os or syscall.
type files interface {
	read(path string) (string, error)
	write(path, text string) error // to an existing file, in one call
	make(dir string) error
	remove(dir string) error
	list(dir string) ([]string, error) // subdirectories of dir
}

// disk is the real file system. It avoids package os, which would register each of the kernel's files with the poller: five more system
// calls for one small read.
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

// gone reports that a cgroup was removed while it was read.
func gone(err error) bool { return errors.Is(err, syscall.ENODEV) }
