package lab

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroup is the name of the parent cgroup of the engine's containers, in every hierarchy. Two agents on one machine
// need different ones; otherwise each treats the other's pods as leftovers. Down uses it to find processes that no
// engine knows any more.
func (h *Host) cgroup() string { return h.Namespace() }

// cgroupRoots returns the mount points of the machine's hierarchies: one with cgroup v2, one per controller with v1.
func cgroupRoots() []string {
	var roots []string
	for _, m := range readMounts() {
		if (m.kind == "cgroup" || m.kind == "cgroup2") && !slices.Contains(roots, m.point) {
			roots = append(roots, m.point)
		}
	}
	return roots
}

// connectCgroup returns the host's cgroup in the v2 hierarchy, whether or not v1 is also mounted; "" if there is none.
func (h *Host) connectCgroup() string {
	for _, m := range readMounts() {
		if m.kind == "cgroup2" {
			return filepath.Join(m.point, h.cgroup())
		}
	}
	return ""
}

// removePins removes the BPF programs that a proxy left on the cgroup. They are pinned under its inode number.
func (h *Host) removePins(ctx context.Context) error {
	dir := h.connectCgroup()
	if _, err := os.Stat(dir); err != nil {
		return nil // no such cgroup
	}
	inode, err := run(ctx, "stat", "--format=%i", dir)
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join("/sys/fs/bpf/winkube-proxy", strings.TrimSpace(inode)))
}

// makeCgroups creates the cgroup in every hierarchy. In v1 the cpuset of a new cgroup is empty, and then it cannot hold
// processes.
func makeCgroups(name string) error {
	for _, root := range cgroupRoots() {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			have, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || strings.TrimSpace(string(have)) != "" {
				continue
			}
			all, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				continue // v2: empty means all
			}
			if err := os.WriteFile(filepath.Join(dir, file), all, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// cgroupDirs returns every directory of the cgroup, children before parents.
func cgroupDirs(name string) []string {
	var dirs []string
	for _, root := range cgroupRoots() {
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	slices.Sort(dirs)
	slices.Reverse(dirs)
	return dirs
}

// cgroupProcesses returns the processes in the cgroup and its descendants.
func cgroupProcesses(name string) []int {
	var pids []int
	for _, dir := range cgroupDirs(name) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func removeCgroups(name string) error {
	var errs []error
	for _, dir := range cgroupDirs(name) {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
