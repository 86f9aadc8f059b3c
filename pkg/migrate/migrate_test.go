package migrate

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestPrograms: programs of others are found by their names. Our own is not one, nor is one in another network.
func TestPrograms(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no /proc")
	}
	proc := t.TempDir()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in := func(pid, network string) {
		t.Helper()
		dir := filepath.Join(proc, pid, "ns")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(network, filepath.Join(dir, "net")); err != nil {
			t.Fatal(err)
		}
	}
	in("self", "net:[1]")
	add := func(pid, exe string, argv ...string) {
		t.Helper()
		dir := filepath.Join(proc, pid)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(strings.Join(argv, "\x00")+"\x00"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(exe, filepath.Join(dir, "exe")); err != nil {
			t.Fatal(err)
		}
	}
	add("11", own, "kubelet", "--v=9")
	add("12", "/bin/sh", "sh", "-c", "kubelet")
	in("15", "net:[2]")
	add("15", "/usr/bin/kubelet", "/usr/bin/kubelet", "--v=3")
	if _, err := Programs(proc, nil); err == nil || !strings.Contains(err.Error(), "kubelet doctor --migrate -- ") {
		t.Errorf("no other kubelet: %v", err)
	}
	add("13", "/usr/local/bin/cri-dockerd", "/usr/local/bin/cri-dockerd", "--network-plugin=cni")
	in("14", "net:[1]")
	add("14", "/usr/bin/kubelet", "/usr/bin/kubelet", "--config=x", "--v=2")
	list, err := Programs(proc, nil)
	if err != nil || len(list) != 2 || list[0].Name != "cri-dockerd" || list[1].From != "process 14" || !slices.Equal(list[1].Args, []string{"--config=x", "--v=2"}) {
		t.Errorf("found %+v, %v", list, err)
	}
}
