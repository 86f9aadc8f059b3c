package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ownGroup creates a v1 memory cgroup for the test.
func ownGroup(t *testing.T) (place Place, dir string) {
	t.Helper()
	reader, err := NewReader("/proc")
	if err != nil {
		t.Fatal(err)
	}
	own, err := reader.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	above, v2, err := reader.dir(own, "memory")
	if err != nil || v2 {
		t.Skipf("needs memory cgroups of version 1: %v", err)
	}
	name := "winkube-alarm-" + strconv.Itoa(os.Getpid())
	dir = filepath.Join(above, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs to make cgroups: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	_, where, _ := parseCgroup(string(own), "memory")
	return Place("1:memory:" + strings.TrimSuffix(where, "/") + "/" + name + "\n"), dir
}

// TestAlarm makes the kernel report that a cgroup uses more memory: a file on tmpfs is charged to the process that writes it.
func TestAlarm(t *testing.T) {
	place, dir := ownGroup(t)
	alarm, err := NewAlarm("/proc", func() Place { return place })
	if err != nil {
		t.Fatal(err)
	}
	if err := alarm.Arm(1<<40, 8<<20); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alarm.Arm(0, 0) }()
	shm, err := os.MkdirTemp("/dev/shm", "winkube-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(shm)
	write := `echo $$ > ` + dir + `/cgroup.procs && head -c 16777216 /dev/zero > ` + shm + `/f`
	process, err := os.StartProcess("/bin/sh", []string{"sh", "-c", write}, &os.ProcAttr{Files: []*os.File{nil, nil, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := process.Wait(); err != nil || !state.Success() {
		t.Fatal(state, err)
	}
	select {
	case <-alarm.C():
	case <-time.After(time.Minute):
		t.Error("16 MB are in use, and no alarm came")
	}
}

// TestPressure registers a trigger with the kernel and removes it.
func TestPressure(t *testing.T) {
	const file = "/proc/pressure/memory"
	if _, err := os.Stat(file); err != nil {
		t.Skip(err)
	}
	stop, err := watchPressure(file, stall, func() {})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := watchPressure(file, "some much of it", func() {}); err == nil {
		t.Error("the kernel took what is no trigger")
	}
}
