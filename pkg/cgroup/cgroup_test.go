package cgroup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s", file, got)
	}
}

var versions = map[string]bool{"v1": false, "v2": true}

func newTree(t *testing.T, v2 bool) (*Tree, *kernel) {
	t.Helper()
	k, mounts := newKernel(v2)
	tree, err := open(Config{Root: ownRoot}, k, mounts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tree, k
}

var web = Group{"kubepods", "burstable", "pod1-2"}

var limits = Limits{Shares: 256, Quota: 50_000, Period: 100_000, Memory: 1<<20 + 5, Pids: 100, NoSwap: true, HugePages: map[uint64]int64{2 << 20: 4 << 20, 1 << 30: 0}}

// TestLife: a cgroup is created with its limits, read, changed and removed. Values that already match are not written.
func TestLife(t *testing.T) {
	for name, v2 := range versions {
		t.Run(name, func(t *testing.T) {
			tree, k := newTree(t, v2)
			if _, exists, err := tree.Get(web, limits); exists || err != nil {
				t.Fatalf("before it is made: exists %t, %v", exists, err)
			}
			if err := tree.Set(t.Context(), web, limits); err != nil {
				t.Fatal(err)
			}
			golden(t, name, k.take()+"\n")
			have, exists, err := tree.Get(web, limits)
			if err != nil || !exists || !have.same(limits) {
				t.Errorf("read back %+v (exists %t, %v), want %+v", have, exists, err, limits)
			}
			if err := tree.Set(t.Context(), web, limits); err != nil || len(k.log) > 0 {
				t.Errorf("set again: %v, wrote\n%s", err, k.take())
			}
			none := Limits{Shares: 2}
			if err := tree.Set(t.Context(), web, none); err != nil {
				t.Fatal(err)
			}
			if have, _, err := tree.Get(web, none); err != nil || !have.same(none) {
				t.Errorf("without limits: read back %+v, %v", have, err)
			}
			if names, err := tree.Children(web[:2]); err != nil || !slices.Equal(names, []string{"pod1-2"}) {
				t.Errorf("children: %v, %v", names, err)
			}
			if got, want := tree.Parent(web), "/agents/one/kubepods/burstable/pod1-2"; got != want {
				t.Errorf("parent %s, want %s", got, want)
			}
		})
	}
}

// TestRemove: leftover container cgroups are removed with the pod's, in every hierarchy. Nothing is removed while a process runs.
func TestRemove(t *testing.T) {
	for name, v2 := range versions {
		t.Run(name, func(t *testing.T) {
			tree, k := newTree(t, v2)
			if err := tree.Set(t.Context(), web, limits); err != nil {
				t.Fatal(err)
			}
			var inside []string
			for _, dir := range slices.Sorted(maps.Keys(k.dirs)) {
				if strings.HasSuffix(dir, "/pod1-2") {
					inside = append(inside, dir+"/c1")
				}
			}
			if !v2 { // only the engine creates cgroups there
				for _, dir := range []string{"/kubepods", "/kubepods/burstable", "/kubepods/burstable/pod1-2"} {
					inside = append(inside, "/cg/freezer"+ownRoot+dir)
				}
			}
			for _, dir := range inside {
				if err := k.make(dir); err != nil {
					t.Fatal(err)
				}
			}
			k.busy[inside[0]] = true
			if err := tree.Remove(t.Context(), web); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("with a process inside: %v, want EBUSY", err)
			}
			clear(k.busy)
			if err := tree.Remove(t.Context(), web); err != nil {
				t.Fatal(err)
			}
			for dir := range k.dirs {
				if strings.Contains(dir, "pod1-2") {
					t.Errorf("%s is left", dir)
				}
			}
			if err := tree.Remove(t.Context(), Group{"kubepods"}); err != nil || strings.Contains(k.String(), "kubepods") {
				t.Errorf("%v; after all is removed:\n%s", err, k)
			}
			if err := tree.Remove(t.Context(), web); err != nil {
				t.Errorf("removed twice: %v", err)
			}
			if err := tree.Remove(t.Context(), nil); err == nil || !k.dirs["/cg"+ownRoot] && !k.dirs["/cg/cpu"+ownRoot] {
				t.Errorf("the root: %v", err)
			}
		})
	}
}

// TestShrinkBelowUse: v2 would kill processes, v1 would fail half-way.
func TestShrinkBelowUse(t *testing.T) {
	for name, v2 := range versions {
		tree, k := newTree(t, v2)
		if err := tree.Set(t.Context(), web, Limits{Memory: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		file := "/cg/memory" + tree.Parent(web) + "/memory.usage_in_bytes"
		if v2 {
			file = "/cg" + tree.Parent(web) + "/memory.current"
		}
		k.text[file] = "1000000\n"
		k.take()
		err := tree.Set(t.Context(), web, Limits{Memory: 500_000})
		if err == nil || !strings.Contains(err.Error(), "memory limit (500000) below current usage (1000000)") || len(k.log) > 0 {
			t.Errorf("%s: %v, wrote %q", name, err, k.take())
		}
	}
}

// TestOpen: errors name what is missing and what to do.
func TestOpen(t *testing.T) {
	for name, test := range map[string]struct {
		v2     bool
		damage func(*kernel, *[]mount)
		want   string
	}{
		"v1 no root":    {false, func(k *kernel, _ *[]mount) { delete(k.dirs, "/cg/memory"+ownRoot) }, "--cgroup-root=/agents/one: there is no cgroup /cg/memory/agents/one"},
		"v2 no root":    {true, func(k *kernel, _ *[]mount) { delete(k.dirs, "/cg"+ownRoot) }, "there is no cgroup /cg/agents/one"},
		"v1 no memory":  {false, func(_ *kernel, m *[]mount) { *m = slices.DeleteFunc(*m, func(m mount) bool { return m.has("memory") }) }, "cgroup controller memory is missing (there is version 1 with cpu, cpuacct"},
		"v2 no memory":  {true, func(k *kernel, _ *[]mount) { k.text["/cg/cgroup.controllers"] = "cpu pids" }, "cgroup controller memory is missing (there is version 2 with cpu, pids)"},
		"empty cpuset":  {false, func(k *kernel, _ *[]mount) { k.text["/cg/cpuset"+ownRoot+"/cpuset.mems"] = "\n" }, "/cg/cpuset/agents/one/cpuset.mems is empty"},
		"nothing there": {false, func(_ *kernel, m *[]mount) { *m = nil }, "cgroup controller cpu is missing"},
	} {
		k, mounts := newKernel(test.v2)
		test.damage(k, &mounts)
		_, err := open(Config{Root: ownRoot}, k, mounts, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "--cgroups-per-qos=false") {
			t.Errorf("%s: %v, want %q and advice", name, err, test.want)
		}
	}
}

// manager simulates systemd's manager: it knows which units are loaded, and logs calls.
type manager struct {
	loaded map[string]bool
	log    strings.Builder
}

func (m *manager) answer(call, unit string, list []property, err error) error {
	fmt.Fprint(&m.log, call, " ", unit)
	for _, p := range list {
		fmt.Fprintf(&m.log, " %s=%v", p.name, p.value)
	}
	if err != nil {
		fmt.Fprint(&m.log, ": ", err)
	}
	fmt.Fprintln(&m.log)
	return err
}

func (m *manager) start(_ context.Context, unit string, list []property) error {
	if m.loaded[unit] {
		return m.answer("start", unit, list, errUnitExists)
	}
	m.loaded[unit] = true
	return m.answer("start", unit, list, nil)
}

func (m *manager) change(_ context.Context, unit string, list []property) error {
	if !m.loaded[unit] {
		return m.answer("change", unit, list, errNoUnit)
	}
	return m.answer("change", unit, list, nil)
}

func (m *manager) stop(_ context.Context, unit string) error {
	if !m.loaded[unit] {
		return m.answer("stop", unit, nil, errNoUnit)
	}
	delete(m.loaded, unit)
	return m.answer("stop", unit, nil, nil)
}

// TestSystemd: systemd creates and changes slices, and they are read where systemd puts them.
func TestSystemd(t *testing.T) {
	for name, v2 := range versions {
		t.Run(name, func(t *testing.T) {
			k, mounts := newKernel(v2)
			for _, m := range mounts {
				k.dirs[m.dir+"/agents.slice"], k.dirs[m.dir+"/agents.slice/agents-one.slice"] = true, true
			}
			fake := &manager{loaded: map[string]bool{}}
			tree, err := open(Config{Root: "/agents.slice/agents-one.slice", Systemd: true}, k, mounts, fake)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := tree.Parent(web), "agents-one-kubepods-burstable-pod1_2.slice"; got != want {
				t.Errorf("parent %s, want %s", got, want)
			}
			if err := tree.Set(t.Context(), web, limits); err != nil {
				t.Fatal(err)
			}
			for _, m := range mounts { // as systemd does
				dir := m.dir + "/agents.slice/agents-one.slice"
				for _, slice := range []string{"agents-one-kubepods.slice", "agents-one-kubepods-burstable.slice", "agents-one-kubepods-burstable-pod1_2.slice"} {
					if v2 {
						k.text[dir+"/cgroup.subtree_control"] = "cpu memory pids"
					}
					dir += "/" + slice
					k.fill(dir, false)
				}
			}
			if names, err := tree.Children(web[:2]); err != nil || !slices.Equal(names, []string{"pod1-2"}) {
				t.Errorf("children: %v, %v", names, err)
			}
			have, exists, err := tree.Get(web, limits)
			if err != nil || !exists || have.Memory != 0 || have.Quota != 0 {
				t.Errorf("read back %+v, %t, %v", have, exists, err)
			}
			if err := tree.Set(t.Context(), web, Limits{Shares: 2}); err != nil {
				t.Fatal(err)
			}
			procs := tree.dir(tree.written()[0], web) + "/cgroup.procs"
			k.text[procs] = "17\n"
			if err := tree.Remove(t.Context(), web); err == nil || !strings.Contains(err.Error(), "processes [17] run in it") {
				t.Errorf("removed with a process: %v", err)
			}
			delete(k.text, procs)
			if err := tree.Remove(t.Context(), web); err != nil {
				t.Fatal(err)
			}
			if err := tree.Remove(t.Context(), Group{"kubepods", "podnone"}); err != nil {
				t.Fatal(err)
			}
			// A slice that is loaded but has no cgroup: it never had a process.
			fake.loaded["agents-one-kubepods-pod3.slice"] = true
			if err := tree.Set(t.Context(), Group{"kubepods", "pod3"}, limits); err != nil {
				t.Fatal(err)
			}
			golden(t, "systemd-"+name, fake.log.String())
		})
	}
}

// TestWithoutSwapAccounting: a kernel that does not account for swap has no file for it. That is no difference to correct.
func TestWithoutSwapAccounting(t *testing.T) {
	tree, k := newTree(t, true)
	if err := tree.Set(t.Context(), web, Limits{Shares: 2}); err != nil {
		t.Fatal(err)
	}
	want := Limits{Shares: 2, NoSwap: true}
	if have, _, err := tree.Get(web, want); err != nil || have.same(want) {
		t.Errorf("may swap: read back %+v, %v", have, err)
	}
	delete(k.text, tree.dir(tree.written()[0], web)+"/memory.swap.max")
	if have, _, err := tree.Get(web, want); err != nil || !have.same(want) {
		t.Errorf("read back %+v, %v; want %+v", have, err, want)
	}
	k.log = nil
	if err := tree.Set(t.Context(), web, want); err != nil || len(k.log) > 0 {
		t.Errorf("%v, wrote\n%s", err, k.take())
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[int64]int64{2: 1, 3: 2, 102: 17, 1024: 100, 262144: 10000, 0: 1} {
		if got := Weight(shares); got != want {
			t.Errorf("weight of %d: %d, want %d", shares, got, want)
		}
	}
	for _, weight := range []int64{1, 2, 100, 9999, 10000} {
		if got := Weight(sharesOf(weight)); got != weight {
			t.Errorf("weight %d comes back as %d", weight, got)
		}
	}
}

// TestPlace finds a pod's cgroup from a container's.
func TestPlace(t *testing.T) {
	for _, test := range []struct{ container, want string }{
		{"5:memory:/kubepods/burstable/pod1-2/abc\n4:cpu:/kubepods/burstable/pod1-2/abc\n0::/\n", "5:memory:/kubepods/burstable/pod1-2\n4:cpu:/kubepods/burstable/pod1-2"},
		{"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/docker-abc.scope\n", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
		{"0::/docker/abc\n", ""},
		{"0::/kubepods/podother/abc\n", ""},
	} {
		got, ok := Place(test.container).Pod("1-2")
		if string(got) != test.want || ok != (test.want != "") {
			t.Errorf("pod of %q: %q %t, want %q", test.container, got, ok, test.want)
		}
	}
	tree, _ := newTree(t, true)
	if got := tree.Place(Group{"kubepods"}); got != "0::/agents/one/kubepods\n" || !got.Own() {
		t.Errorf("place %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1 0 0:1 / /cg rw - cgroup cgroup rw,cpu\n2:cpu:/a\n0::/b\nsome avg10=1 avg60=1 avg300=1 total=1")
	f.Fuzz(func(t *testing.T, text string) {
		r := Reader{mounts: parseMountinfo(text)}
		for _, m := range r.mounts {
			dir, _, err := r.dir(Place(text), "memory")
			if err == nil && len(r.mounts) == 1 && filepath.Clean(m.dir) != filepath.Clean(dir) && !strings.HasPrefix(filepath.Clean(dir), strings.TrimSuffix(filepath.Clean(m.dir), "/")+"/") {
				t.Errorf("%q lies outside %q", dir, m.dir)
			}
		}
		Place(text).Pod("1")
		parseTable(text)
		ParsePressure(text)
		sliceElements(text)
	})
}
