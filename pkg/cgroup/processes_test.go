package cgroup

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// TestProcesses lists the processes in a container's cgroup and below it, and never the whole machine's.
func TestProcesses(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the kernel's files have colons in their names and paths")
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/self/mountinfo":             "31 23 0:28 / " + root + "/cg rw,relatime shared:4 - cgroup2 cgroup2 rw\n",
		"proc/7/cgroup":                   "0::/pods/podu1/a\n",
		"proc/1/cgroup":                   "0::/\n",
		"cg/cgroup.procs":                 "1\n2\n",
		"cg/pods/podu1/a/cgroup.procs":    "7\n8\n0\n",
		"cg/pods/podu1/a/in/cgroup.procs": "9\n",
		"cg/pods/podu1/b/cgroup.procs":    "10\n",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewReader(filepath.Join(root, "proc"))
	if err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int][]int{7: {7, 8, 9}, 1: {1}} {
		if got, err := r.Processes(pid); err != nil || !slices.Equal(got, want) {
			t.Errorf("with process %d: %v, %v; want %v", pid, got, err, want)
		}
	}
	if _, err := r.Processes(11); !missing(err) {
		t.Errorf("of none: %v", err)
	}
}
