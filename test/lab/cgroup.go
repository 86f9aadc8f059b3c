package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroup is the name of the cgroup below which all containers of the host's engine are, in every hierarchy. Two agents on one machine
// need different ones, or each treats the other's pods as leftovers. Down uses it to find processes that no engine knows any more.
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

// makeCgroups creates the cgroup in every hierarchy. cpuset of v1 starts empty, and an empty one cannot hold processes.
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
				continue // v2: an empty one means all
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

// cgroupProcesses returns the processes in the cgroup and below.
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
