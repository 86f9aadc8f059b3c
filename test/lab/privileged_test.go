package lab

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// TestRuncPrivileged: containers and commands lose CAP_SYS_RESOURCE and nothing else, wherever it is in the lists; runc gets its arguments.
func TestRuncPrivileged(t *testing.T) {
	dir := t.TempDir()
	wrapper := filepath.Join(dir, "wrapper")
	if err := os.WriteFile(wrapper, fmt.Appendf(nil, runcPrivileged, "echo"), 0o755); err != nil {
		t.Fatal(err)
	}
	const before = `{"args":["echo","a b"],"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE","CAP_SYS_ADMIN"],"effective":["CAP_SYS_RESOURCE", "CAP_CHOWN"],"permitted":["CAP_CHOWN","CAP_SYS_RESOURCE"]}`
	const after = `{"args":["echo","a b"],"bounding":["CAP_CHOWN","CAP_SYS_ADMIN"],"effective":["CAP_CHOWN"],"permitted":["CAP_CHOWN"]}`
	process := filepath.Join(dir, "process 1")
	for file, args := range map[string][]string{
		filepath.Join(dir, "config.json"): {"--root", "/x", "create", "--bundle", dir, "--pid-file", "y", "id"},
		process:                           {"--root", "/x", "exec", "--process", process, "--detach", "id"},
	} {
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		said, err := output.Of(exec.CommandContext(t.Context(), wrapper, args...))
		if want := fmt.Sprintln(args); err != nil || "["+said.Stdout[:len(said.Stdout)-1]+"]\n" != want {
			t.Errorf("runc got %q, want %q: %v", said.Stdout, want, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != after {
			t.Errorf("%s:\ngot  %s\nwant %s: %v", file, got, after, err)
		}
	}
	said, err := output.Of(exec.CommandContext(t.Context(), wrapper, "kill", "id", "9"))
	if err != nil || said.Stdout != "kill id 9\n" {
		t.Errorf("runc got %q: %v", said.Stdout, err)
	}
}

// TestStandardRoot: the first node's kubelet alone works in /var/lib/kubelet.
func TestStandardRoot(t *testing.T) {
	t.Setenv("RUNTIME", RuncPrivileged)
	c := New(t.TempDir(), os.Stderr)
	if got := c.Nodes[0].KubeletDir("pods"); got != "/var/lib/kubelet/pods" {
		t.Errorf("the first node has %s", got)
	}
	if got := c.Nodes[1].KubeletDir("pods"); got != c.Nodes[1].Dir("kubelet", "pods") {
		t.Errorf("the second node has %s", got)
	}
	t.Setenv("RUNTIME", "crun")
	if got := New(t.TempDir(), os.Stderr).Nodes[0].KubeletDir(); got == standardRoot {
		t.Errorf("with crun the first node has %s", got)
	}
}

// TestRemoveStandardRoot: the socket that a dead kubelet left goes, one that is served stays, and so do files.
func TestRemoveStandardRoot(t *testing.T) {
	root := t.TempDir() + "/kubelet"
	dir := filepath.Join(root, "device-plugins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "kubelet.sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	removeStandardRoot(root)
	if !there(l.Addr().String()) {
		t.Error("the socket of a kubelet that serves is gone")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "config.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removeStandardRoot(root)
	if there(dir) || !there(file) {
		t.Errorf("with a file: the dead kubelet's socket is there: %t, the file: %t; want the file alone", there(dir), there(file))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if removeStandardRoot(root); there(root) {
		t.Error("the empty directory is there")
	}
}
