package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestDevices(t *testing.T) {
	want := []Device{{Number: "8:16", ReadBytes: 4096, WriteBytes: 8192, Reads: 1, Writes: 2}, {Number: "253:0", ReadBytes: 7, Writes: 3}}
	v1 := parseBlkio("8:16 Read 4096\n8:16 Write 8192\n8:16 Sync 0\n8:16 Total 12288\n253:0 Read 7\nTotal 12295\n", "8:16 Read 1\n8:16 Write 2\n253:0 Write 3\n")
	if !reflect.DeepEqual(v1, want) {
		t.Errorf("v1: got %+v", v1)
	}
	v2 := parseIO("8:16 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n253:0 rbytes=7 wios=3\n7:0 \n\n")
	if !reflect.DeepEqual(v2, want) {
		t.Errorf("v2: got %+v", v2)
	}
}

func TestOOMKillsAndDeviceNames(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"memory.events":      "low 0\nhigh 0\nmax 5\noom 2\noom_kill 3\noom_group_kill 0\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
		"diskstats":          "   8       0 sda 1 2 3\n 253       0 dm-0 1 2 3\n\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for v2, want := range map[bool]uint64{true: 3, false: 4} {
		if n := oomKills(dir, v2); n == nil || *n != want {
			t.Errorf("v2 %t: got %v, want %d", v2, n, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.oom_control"), []byte("oom_kill_disable 0\nunder_oom 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := oomKills(dir, false); n != nil {
		t.Errorf("a kernel without this figure: got %d", *n)
	}
	if names := (&Reader{proc: dir}).DeviceNames(); !reflect.DeepEqual(names, map[string]string{"8:0": "sda", "253:0": "dm-0"}) {
		t.Errorf("got %v", names)
	}
}

// TestTreeOOMKills: version 2 counts for a cgroup and all below it.
func TestTreeOOMKills(t *testing.T) {
	for name, v2 := range versions {
		tree, k := newTree(t, v2)
		if n, known := tree.OOMKills(web); known {
			t.Errorf("%s, no cgroup: %d", name, n)
		}
		if err := tree.Set(t.Context(), web, limits); err != nil {
			t.Fatal(err)
		}
		m, err := tree.hierarchy("memory")
		if err != nil {
			t.Fatal(err)
		}
		k.text[tree.dir(m, web)+"/memory.events"] = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n"
		if n, known := tree.OOMKills(web); known != v2 || v2 && n != 2 {
			t.Errorf("%s: %d, %t", name, n, known)
		}
	}
}
