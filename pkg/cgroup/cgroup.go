// Package cgroup is the interface to the kernel's control groups on Linux: it maintains a tree of them below one root, and measures them.
//
//	limits of the node, of QoS classes and of pods --> Tree.Set: list, compare, write --> cgroup files (v1, v2), or systemd's slices
//	Tree.Get, Reader.Measure <-- cgroup files
//
// It handles plain figures and decides nothing about pods. A Tree touches only cgroups below its own root, so that several agents can share
// a machine. The code compiles on all systems; only on Linux is there a Tree.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Config says where a Tree is and who else writes there.
type Config struct {
	// Root is the parent cgroup of the Tree, as a path from the top of the hierarchies: "/", "/agents/one", or with systemd a slice:
	// "/agents.slice". It must exist.
	Root string
	// Systemd means that systemd owns the hierarchies (the engine's CgroupDriver): cgroups are then slices, which systemd creates and
	// changes.
	Systemd bool
	Proc    string // "": /proc
}

// Group names a cgroup by its path elements below the Tree's root: kubepods, burstable, pod<uid>.
type Group []string

// Limits are the limits and weights of a cgroup.
type Limits struct {
	Shares int64 // CPU weight as in v1: 2 to 262144; 0: unchanged
	Quota  int64 // microseconds of CPU in each Period; 0: no limit
	Period int64 // microseconds; 0 without a Quota
	Memory int64 // bytes; 0: no limit
	Pids   int64 // processes and threads; 0: no limit
	// NoSwap keeps the processes' memory out of swap, on cgroup v2 (KEP-2400, NoSwap); false: unchanged. A kernel that does not
	// account for swap ignores it.
	NoSwap bool
	// HugePages are bytes by page size in bytes; nil: unchanged. Sizes that the kernel does not know are skipped.
	HugePages map[uint64]int64
}

// Tree is a tree of cgroups. Its methods are safe for concurrent use, except for the same Group.
type Tree struct {
	root    Group
	files   files
	systemd *systemd // nil: cgroups are directories that we create
	v2      bool
	mounts  []mount
}

// required are the controllers that a Tree needs, for v1 (false) and v2 (true). v1 has two for the CPU, and a process needs a cpuset that
// is not empty.
var required = map[bool][]string{
	false: {"cpu", "cpuacct", "cpuset", "memory"},
	true:  {"cpu", "memory"},
}

const advice = "or switch cgroups of pods off with --cgroups-per-qos=false"

// Open finds the hierarchies and checks that they suffice for a Tree. Its errors say what is missing and what to do.
func Open(cfg Config) (*Tree, error) {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	disk := disk{}
	text, err := disk.read(path.Join(cfg.Proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	return open(cfg, disk, parseMountinfo(text), systemdUnits())
}

func open(cfg Config, files files, mounts []mount, units units) (*Tree, error) {
	t := &Tree{files: files, mounts: mounts, root: elements(cfg.Root)}
	if cfg.Systemd {
		t.systemd = &systemd{units: units}
		t.root = sliceElements(cfg.Root)
	}
	t.v2 = !slices.ContainsFunc(mounts, func(m mount) bool { return m.has("memory") || m.has("cpu") }) &&
		slices.ContainsFunc(mounts, mount.unified)
	have := mounts
	var enabled []string
	if t.v2 {
		m, _ := t.hierarchy("")
		text, err := files.read(path.Join(m.dir, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("cannot list the cgroup controllers: %w", err)
		}
		enabled = strings.Fields(text)
	}
	for _, name := range required[t.v2] {
		if !t.v2 && !slices.ContainsFunc(have, func(m mount) bool { return m.has(name) }) || t.v2 && !slices.Contains(enabled, name) {
			return nil, fmt.Errorf("cgroup controller %s is missing (there is %s): enable it in the kernel (its command line may say cgroup_disable=%s) and, "+
				"with cgroup v1, mount it below /sys/fs/cgroup, %s", name, t.present(enabled), name, advice)
		}
	}
	return t, t.checkRoot(cfg.Root)
}

// checkRoot requires the root in every hierarchy that Set writes to, and in v1 with CPUs and memory nodes assigned.
func (t *Tree) checkRoot(root string) error {
	for _, m := range t.written() {
		dir := t.dir(m, nil)
		if _, err := t.files.list(dir); err != nil {
			return fmt.Errorf("--cgroup-root=%s: there is no cgroup %s (%w): make it in every hierarchy, correct the flag, %s", root, dir, err, advice)
		}
		if !m.has("cpuset") {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if text, err := t.files.read(path.Join(dir, file)); err == nil && strings.TrimSpace(text) == "" {
				return fmt.Errorf("--cgroup-root=%s: %s/%s is empty, so that no process can run below it: copy its parent's value into it, %s", root, dir, file, advice)
			}
		}
	}
	return nil
}

func (t *Tree) present(enabled []string) string {
	if t.v2 {
		return "version 2 with " + strings.Join(enabled, ", ")
	}
	var names []string
	for _, m := range t.mounts {
		if !m.unified() {
			names = append(names, strings.Trim(m.controllers, ","))
		}
	}
	return "version 1 with " + strings.Join(names, ", ")
}

// Parent is the cgroup's name in the form that the engine expects (HostConfig.CgroupParent).
func (t *Tree) Parent(g Group) string {
	if t.systemd != nil {
		return sliceName(slices.Concat(t.root, g))
	}
	return "/" + path.Join(slices.Concat(t.root, g)...)
}

// Set creates the cgroup and its parents, and applies want. It does not rewrite values that already match. It refuses a memory limit at or
// below current use: v2 would kill processes, v1 would stop half-way.
func (t *Tree) Set(ctx context.Context, g Group, want Limits) error {
	have, exists, err := t.Get(g, want)
	if err != nil {
		return err
	}
	if exists && want.Memory > 0 && (have.Memory == 0 || want.Memory < have.Memory) {
		if used, err := t.memoryInUse(g); err == nil && used >= want.Memory {
			return fmt.Errorf("cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)", want.Memory, used)
		}
	}
	if t.systemd != nil {
		if exists && have.same(want) {
			return nil
		}
		return t.systemd.set(ctx, sliceName(slices.Concat(t.root, g)), exists, want, t.v2)
	}
	if err := t.make(g); err != nil {
		return err
	}
	return t.write(g, want)
}

// Get reads a cgroup's limits; exists is false if there is no cgroup. The kernel rounds some figures (pages of memory, weights of v2). If
// it has the rounded value of want, Get returns want's.
func (t *Tree) Get(g Group, want Limits) (have Limits, exists bool, err error) {
	for _, s := range t.settings(want) {
		if s.get == nil {
			continue
		}
		text, err := t.files.read(s.path(t, g))
		switch {
		case missing(err) && s.optional:
			if s.absent != nil {
				s.absent(&have)
			}
		case missing(err):
			return Limits{}, false, nil
		case err != nil:
			return Limits{}, false, fmt.Errorf("cannot read the limits of cgroup %s: %w", t.Parent(g), err)
		default:
			s.get(&have, strings.TrimSpace(text))
		}
	}
	if have.Quota == 0 {
		have.Period = 0
	}
	if !t.v2 {
		have.NoSwap = want.NoSwap
	}
	return have, true, nil
}

// same compares the figures that Get returns.
func (l Limits) same(other Limits) bool {
	return l.Shares == other.Shares && l.Quota == other.Quota && l.Period == other.Period && l.Memory == other.Memory && l.Pids == other.Pids && l.NoSwap == other.NoSwap
}

// Children lists the cgroups directly below g, by their elements in Group.
func (t *Tree) Children(g Group) ([]string, error) {
	var out []string
	for _, m := range t.mounts { // an incomplete cgroup may remain in any hierarchy
		names, err := t.files.list(t.dir(m, g))
		if err != nil && !missing(err) {
			return nil, fmt.Errorf("cannot list cgroup %s: %w", t.Parent(g), err)
		}
		for _, name := range names {
			if t.systemd != nil {
				all := sliceElements(name)
				if !strings.HasSuffix(name, sliceSuffix) || len(all) == 0 {
					continue
				}
				name = all[len(all)-1]
			}
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// Remove removes a cgroup and everything below it, in every hierarchy. A missing cgroup is not an error. It never kills a process: it fails
// if one is inside.
func (t *Tree) Remove(ctx context.Context, g Group) error {
	if len(g) == 0 {
		return errors.New("cannot remove the root of the cgroups: name a cgroup below it")
	}
	if t.systemd != nil {
		if !t.Has(g) {
			return nil
		}
		unit := sliceName(slices.Concat(t.root, g))
		if pids, err := processesBelow(t.files, t.dir(t.written()[0], g)); err == nil && len(pids) > 0 { // systemd would end them
			return fmt.Errorf("cannot remove the slice %s: processes %v run in it", unit, pids)
		}
		return t.systemd.stop(ctx, unit)
	}
	var errs []error
	for _, m := range t.mounts {
		if err := t.removeAll(t.dir(m, g)); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove cgroup %s: %w", t.Parent(g), err))
		}
	}
	return errors.Join(errs...)
}

// Has reports whether the cgroup exists.
func (t *Tree) Has(g Group) bool {
	_, err := t.files.list(t.dir(t.written()[0], g))
	return !missing(err)
}

func (t *Tree) removeAll(dir string) error {
	names, err := t.files.list(dir)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := t.removeAll(path.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := t.files.remove(dir); !missing(err) {
		return err
	}
	return nil
}

// memoryInUse is the memory use of the cgroup's processes in bytes, including page cache.
func (t *Tree) memoryInUse(g Group) (int64, error) {
	m, err := t.hierarchy("memory")
	if err != nil {
		return 0, err
	}
	name := "memory.usage_in_bytes"
	if t.v2 {
		name = "memory.current"
	}
	text, err := t.files.read(path.Join(t.dir(m, g), name))
	return parse(text), err
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) || gone(err) }
