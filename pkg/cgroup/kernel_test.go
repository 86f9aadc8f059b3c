package cgroup

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// kernel is a model of cgroup file systems: it creates the files of a new cgroup, and refuses what a real kernel refuses.
type kernel struct {
	v2   bool
	text map[string]string // by path of file
	dirs map[string]bool
	busy map[string]bool // directories with processes in them
	log  []string        // writes, and created and removed directories
}

const (
	noMemory = "9223372036854771712"
	// ownRoot is the --cgroup-root of the tests.
	ownRoot = "/agents/one"
)

var v1Controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer"}

func newKernel(v2 bool) (*kernel, []mount) {
	k := &kernel{v2: v2, text: map[string]string{}, dirs: map[string]bool{}, busy: map[string]bool{}}
	var mounts []mount
	if v2 {
		mounts = []mount{{",", "/", "/cg"}}
	} else {
		for _, c := range v1Controllers {
			mounts = append(mounts, mount{"," + c + ",", "/", "/cg/" + c})
		}
		mounts = append(mounts, mount{",", "/", "/cg/unified"})
	}
	for _, m := range mounts {
		k.fill(m.dir, true)
		if m.dir == "/cg/unified" {
			continue
		}
		for _, dir := range []string{m.dir + "/agents", m.dir + "/agents/one"} {
			if err := k.make(dir); err != nil {
				panic(err)
			}
			if m.has("cpuset") {
				k.text[dir+"/cpuset.cpus"], k.text[dir+"/cpuset.mems"] = "0-1\n", "0\n"
			}
			if v2 {
				k.text[path.Dir(dir)+"/cgroup.subtree_control"] = k.text[m.dir+"/cgroup.controllers"]
				k.fill(dir, false)
			}
		}
	}
	k.log = nil
	return k, mounts
}

// fill creates the files of a cgroup.
func (k *kernel) fill(dir string, top bool) {
	k.dirs[dir] = true
	add := func(name, text string) {
		if _, ok := k.text[dir+"/"+name]; !ok {
			k.text[dir+"/"+name] = text + "\n"
		}
	}
	if k.v2 {
		enabled := "cpu cpuset hugetlb memory pids"
		if !top {
			enabled = strings.TrimSpace(k.text[path.Dir(dir)+"/cgroup.subtree_control"])
		}
		k.text[dir+"/cgroup.controllers"] = enabled + "\n"
		add("cgroup.subtree_control", "")
		for _, c := range strings.Fields(enabled) {
			for name, text := range map[string]map[string]string{
				"cpu": {"cpu.weight": "100", "cpu.max": "max 100000"}, "memory": {"memory.max": "max", "memory.swap.max": "max", "memory.current": "0"},
				"pids": {"pids.max": "max"}, "hugetlb": {"hugetlb.2MB.max": "max"},
			}[c] {
				if !top {
					add(name, text)
				}
			}
		}
		return
	}
	for name, text := range map[string]map[string]string{
		"cpu":     {"cpu.shares": "1024", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
		"cpuset":  {"cpuset.cpus": "", "cpuset.mems": ""},
		"memory":  {"memory.limit_in_bytes": noMemory, "memory.usage_in_bytes": "0", "memory.use_hierarchy": "1"},
		"pids":    {"pids.max": "max"},
		"hugetlb": {"hugetlb.2MB.limit_in_bytes": "9223372036852678656"},
	}[strings.Split(dir, "/")[2]] {
		add(name, text)
	}
	if top && strings.HasSuffix(dir, "/cpuset") {
		k.text[dir+"/cpuset.cpus"], k.text[dir+"/cpuset.mems"] = "0-1\n", "0\n"
	}
}

func fault(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

func (k *kernel) read(file string) (string, error) {
	text, ok := k.text[file]
	if !ok {
		return "", fault("open", file, syscall.ENOENT)
	}
	return text, nil
}

func (k *kernel) write(file, text string) error {
	old, ok := k.text[file]
	if !ok {
		return fault("open", file, syscall.ENOENT)
	}
	k.log = append(k.log, "write "+file+" "+text)
	dir, name := path.Split(file)
	dir = path.Clean(dir)
	n, err := strconv.ParseInt(text, 10, 64)
	switch name {
	case "cgroup.subtree_control":
		k.text[file] = strings.Join(append(strings.Fields(old), strings.Fields(strings.ReplaceAll(text, "+", ""))...), " ") + "\n"
		for child := range k.dirs {
			if path.Dir(child) == dir {
				k.fill(child, false)
			}
		}
		return nil
	case "cpu.shares", "cpu.weight", "cpu.cfs_period_us", "cpu.cfs_quota_us":
		if err != nil || n == 0 {
			return fault("write", file, syscall.EINVAL)
		}
		if name == "cpu.cfs_quota_us" && !k.fits(dir, n) {
			return fault("write", file, syscall.EINVAL)
		}
	case "memory.limit_in_bytes":
		if n == -1 {
			text = noMemory
		} else if err != nil || n < parse(k.text[dir+"/memory.usage_in_bytes"]) {
			return fault("write", file, syscall.EBUSY)
		} else {
			text = strconv.FormatInt(n/4096*4096, 10)
		}
	}
	k.text[file] = text + "\n"
	return nil
}

// fits reports whether a CPU quota is allowed: in v1 no child may have more CPU than its parent.
func (k *kernel) fits(dir string, quota int64) bool {
	for other := range k.dirs {
		theirs := parse(k.text[other+"/cpu.cfs_quota_us"])
		switch {
		case theirs <= 0 || quota < 0:
		case path.Dir(other) == dir && theirs > quota, path.Dir(dir) == other && theirs < quota:
			return false
		}
	}
	return true
}

func (k *kernel) make(dir string) error {
	switch {
	case k.dirs[dir]:
		return fault("mkdir", dir, syscall.EEXIST)
	case !k.dirs[path.Dir(dir)]:
		return fault("mkdir", dir, syscall.ENOENT)
	}
	k.log = append(k.log, "mkdir "+dir)
	k.fill(dir, false)
	return nil
}

func (k *kernel) remove(dir string) error {
	if !k.dirs[dir] {
		return fault("rmdir", dir, syscall.ENOENT)
	}
	children, _ := k.list(dir)
	if len(children) > 0 || k.busy[dir] {
		return fault("rmdir", dir, syscall.EBUSY)
	}
	k.log = append(k.log, "rmdir "+dir)
	delete(k.dirs, dir)
	maps.DeleteFunc(k.text, func(file, _ string) bool { return path.Dir(file) == dir })
	return nil
}

func (k *kernel) list(dir string) ([]string, error) {
	if !k.dirs[dir] {
		return nil, fault("open", dir, syscall.ENOENT)
	}
	var out []string
	for d := range k.dirs {
		if path.Dir(d) == dir {
			out = append(out, path.Base(d))
		}
	}
	slices.Sort(out)
	return out, nil
}

// String prints all files below the root.
func (k *kernel) String() string {
	var b strings.Builder
	for _, file := range slices.Sorted(maps.Keys(k.text)) {
		if strings.Contains(file, ownRoot+"/") {
			fmt.Fprintf(&b, "%s %s\n", file, strings.TrimSpace(k.text[file]))
		}
	}
	return b.String()
}

func (k *kernel) take() string {
	log := strings.Join(k.log, "\n")
	k.log = nil
	return log
}
