package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// setting is one file of a cgroup.
type setting struct {
	controller, file string
	text             string                 // desired content; "": unchanged
	get              func(*Limits, string)  // parses the content; nil: not read
	optional         bool                   // the kernel may lack it
	absent           func(*Limits)          // what the lack of an optional one means; nil: nothing
	equal            func(have string) bool // nil: compare text
}

func (s setting) path(t *Tree, g Group) string {
	m, err := t.hierarchy(s.controller)
	if err != nil {
		return "" // no such file
	}
	return path.Join(t.dir(m, g), s.file)
}

// settings are a cgroup's files with their desired content, in writing order.
func (t *Tree) settings(want Limits) []setting {
	if t.v2 {
		return append(settingsV2(want), hugePages(want, "hugetlb.%s.max")...)
	}
	return append(settingsV1(want), hugePages(want, "hugetlb.%s.limit_in_bytes")...)
}

// noLimitV1 is "no limit" in v1.
const noLimitV1 = "-1"

func settingsV1(want Limits) []setting {
	number := func(n int64, none string) string {
		if n == 0 {
			return none
		}
		return strconv.FormatInt(n, 10)
	}
	return []setting{
		{controller: "cpu", file: "cpu.shares", text: number(want.Shares, ""), get: func(l *Limits, text string) { l.Shares = parse(text) }},
		{controller: "cpu", file: "cpu.cfs_period_us", text: number(want.Period, ""), get: func(l *Limits, text string) { l.Period = parse(text) }, optional: true},
		{controller: "cpu", file: "cpu.cfs_quota_us", text: number(want.Quota, noLimitV1), get: func(l *Limits, text string) { l.Quota = max(parse(text), 0) }, optional: true},
		{controller: "memory", file: "memory.limit_in_bytes", text: number(want.Memory, noLimitV1),
			get:   func(l *Limits, text string) { l.Memory = want.memory(text) },
			equal: func(have string) bool { return want.memory(have) == want.Memory }},
		{controller: "pids", file: "pids.max", text: number(want.Pids, "max"), get: func(l *Limits, text string) { l.Pids = parse(text) }, optional: true},
	}
}

func settingsV2(want Limits) []setting {
	weight, quota, most := "", "max", func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	if want.Shares > 0 {
		weight = strconv.FormatInt(Weight(want.Shares), 10)
	}
	if want.Quota > 0 {
		quota = fmt.Sprintf("%d %d", want.Quota, want.Period)
	}
	return []setting{
		{controller: "cpu", file: "cpu.weight", text: weight, get: func(l *Limits, text string) {
			if l.Shares = want.Shares; text != weight {
				l.Shares = sharesOf(parse(text))
			}
		}},
		{controller: "cpu", file: "cpu.max", text: quota, optional: true,
			get: func(l *Limits, text string) {
				quota, period, _ := strings.Cut(text, " ")
				l.Quota, l.Period = parse(quota), parse(period)
			},
			equal: func(have string) bool { return have == quota || want.Quota == 0 && strings.HasPrefix(have, "max") }},
		{controller: "memory", file: "memory.max", text: most(want.Memory),
			get:   func(l *Limits, text string) { l.Memory = want.memory(text) },
			equal: func(have string) bool { return want.memory(have) == want.Memory }},
		{controller: "memory", file: "memory.swap.max", text: map[bool]string{true: "0"}[want.NoSwap], optional: true,
			get:    func(l *Limits, text string) { l.NoSwap = want.NoSwap && text == "0" },
			absent: func(l *Limits) { l.NoSwap = want.NoSwap }},
		{controller: "pids", file: "pids.max", text: most(want.Pids), get: func(l *Limits, text string) { l.Pids = parse(text) }, optional: true},
	}
}

// hugePages limit page sizes, which the kernel names like "2MB" and "1GB".
func hugePages(want Limits, file string) (out []setting) {
	for _, size := range slices.Sorted(maps.Keys(want.HugePages)) {
		name := fmt.Sprintf("%dKB", size>>10)
		switch {
		case size >= 1<<30:
			name = fmt.Sprintf("%dGB", size>>30)
		case size >= 1<<20:
			name = fmt.Sprintf("%dMB", size>>20)
		}
		out = append(out, setting{controller: "hugetlb", file: fmt.Sprintf(file, name), text: strconv.FormatInt(want.HugePages[size], 10), optional: true})
	}
	return out
}

// memory parses a limit. The kernel rounds to whole pages, and v1 writes the largest number of them for "no limit".
func (want Limits) memory(text string) int64 {
	const page = 4096 // the smallest page size: no kernel distinguishes smaller differences
	have := parse(text)
	switch {
	case have >= math.MaxInt64/page*page-65536 || have < 0:
		return 0
	case want.Memory > have && want.Memory-have < 65536 && want.Memory/page == have/page:
		return want.Memory
	}
	return have
}

// parse parses a figure; "max" and invalid text are 0.
func parse(text string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n
}

// Weight is the v2 cpu.weight for v1 shares: the curve through the minima, defaults and maxima of both, as in runc 1.3 and upstream's
// kubelet (2 is 1, 1024 is 100, 262144 is 10000).
func Weight(shares int64) int64 {
	switch {
	case shares <= 2:
		return 1
	case shares >= 262144:
		return 10000
	}
	l := math.Log2(float64(shares))
	return int64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// sharesOf is the smallest number of shares with a weight.
func sharesOf(weight int64) int64 {
	return 2 + int64(sort.Search(262142, func(i int) bool { return Weight(2+int64(i)) >= weight }))
}

// make creates the directories of a cgroup and of its missing parents, below the root.
func (t *Tree) make(g Group) error {
	for _, m := range t.written() {
		if err := t.makeOne(m, g); err != nil {
			return fmt.Errorf("cannot make cgroup %s: %w", t.Parent(g), err)
		}
	}
	return nil
}

func (t *Tree) makeOne(m mount, g Group) error {
	if len(g) == 0 {
		return nil
	}
	parent := g[:len(g)-1]
	dir, above := t.dir(m, g), t.dir(m, parent)
	err := t.makeChild(above, dir)
	if missing(err) {
		if err = t.makeOne(m, parent); err == nil {
			err = t.makeChild(above, dir)
		}
	}
	if err != nil {
		return err
	}
	if m.has("cpuset") { // it is empty at first, and an empty one cannot hold processes
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := t.inherit(above, dir, file); err != nil {
				return err
			}
		}
	}
	if m.has("memory") { // kernels before 5.11 may account a child separately from its parent
		if text, err := t.files.read(path.Join(dir, "memory.use_hierarchy")); err == nil && strings.TrimSpace(text) == "0" {
			return t.files.write(path.Join(dir, "memory.use_hierarchy"), "1")
		}
	}
	return nil
}

// makeChild creates a directory whose parent must exist. An existing one is not an error.
func (t *Tree) makeChild(above, dir string) error {
	if t.v2 {
		if err := t.delegate(above); err != nil {
			return err
		}
	}
	if err := t.files.make(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (t *Tree) inherit(above, dir, file string) error {
	have, err := t.files.read(path.Join(dir, file))
	if err != nil || strings.TrimSpace(have) != "" {
		return err
	}
	all, err := t.files.read(path.Join(above, file))
	if err != nil {
		return err
	}
	return t.files.write(path.Join(dir, file), strings.TrimSpace(all))
}

// delegate enables a v2 cgroup's controllers for its children.
func (t *Tree) delegate(dir string) error {
	available, err := t.files.read(path.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	enabled, err := t.files.read(path.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	var lacking []string
	for _, name := range strings.Fields(available) {
		if !slices.Contains(strings.Fields(enabled), name) {
			lacking = append(lacking, "+"+name)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	if err := t.files.write(path.Join(dir, "cgroup.subtree_control"), strings.Join(lacking, " ")); err != nil {
		return fmt.Errorf("cannot give the controllers of %s to its children (processes may be directly in it: choose another --cgroup-root): %w", dir, err)
	}
	return nil
}

// write writes the settings that differ.
func (t *Tree) write(g Group, want Limits) error {
	for _, s := range t.settings(want) {
		if s.text == "" {
			continue
		}
		file := s.path(t, g)
		have, err := t.files.read(file)
		have = strings.TrimSpace(have)
		switch {
		case missing(err) && s.optional:
			continue
		case err != nil:
			return fmt.Errorf("cannot limit cgroup %s: %w", t.Parent(g), err)
		case have == s.text || s.equal != nil && s.equal(have):
			continue
		}
		if err := t.files.write(file, s.text); err != nil {
			return fmt.Errorf("cannot limit cgroup %s: %s to %s: %w", t.Parent(g), s.file, s.text, err)
		}
	}
	return nil
}
