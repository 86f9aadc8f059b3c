// Package cgroup is the last hop to the kernel's control groups of Linux: it keeps a tree of them below one root, and measures by them.
//
//	limits of the node, of QoS classes and of pods --> Tree.Set: list, compare, write --> cgroup files (v1, v2), or systemd's slices
//	Tree.Get, Reader.Measure <-- cgroup files
//
// It takes plain figures and decides nothing about pods. A Tree touches only what is below its own root, so that several agents can share
// a machine. Nothing here is built for one system only: on others there is no Tree.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// Config says where a Tree stands and who else writes there.
type Config struct {
	// Root is the cgroup below which the Tree is, as a path from the top of the hierarchies: "/", "/agents/one", or with systemd a slice:
	// "/agents.slice". It must exist.
	Root string
	// Systemd says that systemd owns the hierarchies (the engine's CgroupDriver): cgroups are then slices, made and set by systemd.
	Systemd bool
	Runner  command.Runner // runs busctl; only with Systemd
	Proc    string         // "": /proc
}

// Group names a cgroup by its elements below the Tree's root: kubepods, burstable, pod<uid>.
type Group []string

// Limits are what a cgroup holds its processes to.
type Limits struct {
	Shares int64 // CPU weight as v1 has it: 2 to 262144; 0: left as it is
	Quota  int64 // microseconds of CPU in each Period; 0: no limit
	Period int64 // microseconds; 0 where there is no Quota
	Memory int64 // bytes; 0: no limit
	Pids   int64 // processes and threads; 0: no limit
	// HugePages are bytes by page size in bytes; nil: left as they are. Sizes that the kernel does not know are passed over.
	HugePages map[uint64]int64
}

// Tree is a tree of cgroups. Its methods may be called concurrently, but for one Group one at a time.
type Tree struct {
	root    Group
	files   files
	systemd *systemd // nil: cgroups are directories that we make
	v2      bool
	mounts  []mount
}

// controllers that a Tree cannot do without, of either version. v1 has two for the CPU, and a process needs a filled cpuset.
var required = map[bool][]string{
	false: {"cpu", "cpuacct", "cpuset", "memory"},
	true:  {"cpu", "memory"},
}

const advice = "or switch cgroups of pods off with --cgroups-per-qos=false"

// Open finds the hierarchies and checks that a Tree can stand there. Its errors say what is missing and what to do.
func Open(cfg Config) (*Tree, error) {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	disk := disk{}
	text, err := disk.read(path.Join(cfg.Proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	return open(cfg, disk, parseMountinfo(text))
}

func open(cfg Config, files files, mounts []mount) (*Tree, error) {
	t := &Tree{files: files, mounts: mounts, root: elements(cfg.Root)}
	if cfg.Systemd {
		t.systemd = &systemd{run: cfg.Runner}
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

// checkRoot wants the root in every hierarchy that Set writes to, and in v1 with processors and memory nodes in it.
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

// Parent is the cgroup's name for the engine (HostConfig.CgroupParent).
func (t *Tree) Parent(g Group) string {
	if t.systemd != nil {
		return sliceName(slices.Concat(t.root, g))
	}
	return "/" + path.Join(slices.Concat(t.root, g)...)
}

// Set makes the cgroup with all above it and holds it to want. What is so already is not written again. A memory limit that is not
// above what is in use now is refused: version 2 would end processes, version 1 stop half-way.
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

// Get reads what a cgroup is held to; exists is false where there is none. Where the kernel keeps a figure of want only coarsely (pages
// of memory, weights of version 2) and has that, want's is told.
func (t *Tree) Get(g Group, want Limits) (have Limits, exists bool, err error) {
	for _, s := range t.settings(want) {
		if s.get == nil {
			continue
		}
		text, err := t.files.read(s.path(t, g))
		switch {
		case missing(err) && s.optional:
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
	return have, true, nil
}

// same compares what Get can tell.
func (l Limits) same(other Limits) bool {
	return l.Shares == other.Shares && l.Quota == other.Quota && l.Period == other.Period && l.Memory == other.Memory && l.Pids == other.Pids
}

// Children lists the cgroups directly below g: the elements by which Group names them.
func (t *Tree) Children(g Group) ([]string, error) {
	var out []string
	for _, m := range t.mounts { // what was left by half may be in any hierarchy
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

// Remove takes a cgroup away with all below it, in every hierarchy. None there is no error. It never ends a process: with one inside,
// it fails.
func (t *Tree) Remove(ctx context.Context, g Group) error {
	if len(g) == 0 {
		return errors.New("cannot remove the root of the cgroups: name a cgroup below it")
	}
	if t.systemd != nil {
		if !t.Has(g) {
			return nil
		}
		return t.systemd.stop(ctx, sliceName(slices.Concat(t.root, g)))
	}
	var errs []error
	for _, m := range t.mounts {
		if err := t.removeAll(t.dir(m, g)); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove cgroup %s: %w", t.Parent(g), err))
		}
	}
	return errors.Join(errs...)
}

// Has says whether the cgroup is there.
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

// memoryInUse is how many bytes the cgroup's processes have, page cache included.
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
