package lab

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestHostName sets a host's name as Up does, in the test's directory, and finds it again if it already exists.
func TestHostName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a namespace needs root")
	}
	before := runDir
	runDir = t.TempDir()
	t.Cleanup(func() { runDir = before })
	host := New(t.TempDir(), io.Discard).Nodes[0]
	if args := host.enter(); strings.Contains(strings.Join(args, " "), "--uts") {
		t.Errorf("a host that is not up is entered by %q", args)
	}
	if err := os.MkdirAll(host.RunDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", host.utsFile()).Run(); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		if err := host.upHostName(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if args := strings.Join(host.enter(), " "); !strings.Contains(args, "--uts="+host.utsFile()) {
		t.Errorf("the host is entered by %s", args)
	}
	name, err := run(t.Context(), "nsenter", "--uts="+host.utsFile(), "--", "uname", "-n")
	if err != nil || strings.TrimSpace(name) != "node1" {
		t.Errorf("the host is called %q (%v), want node1", name, err)
	}
	if ours, err := run(t.Context(), "uname", "-n"); err != nil || strings.TrimSpace(ours) == "node1" {
		t.Errorf("the machine is called %q (%v)", ours, err)
	}
	mounts := 0
	for _, m := range readMounts() {
		if m.point == host.utsFile() {
			mounts++
		}
	}
	if mounts != 1 {
		t.Errorf("the namespace is mounted %d times", mounts)
	}
}
