package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// procs is a fake /proc.
type procs struct {
	t   *testing.T
	dir string
}

func (p procs) write(path, text string) {
	p.t.Helper()
	path = filepath.Join(p.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// run adds a process with a start time, in a network namespace.
func (p procs) run(pid, began int, space string) {
	p.t.Helper()
	p.end(pid)
	p.write(fmt.Sprintf("%d/stat", pid), fmt.Sprintf("%d (a (b) c) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 %d 1000 200 18446744073709551615", pid, began))
	p.write(fmt.Sprintf("%d/ns/.keep", pid), "")
	if err := os.Symlink(space, filepath.Join(p.dir, fmt.Sprint(pid), "ns/net")); err != nil {
		p.t.Fatal(err)
	}
}

func (p procs) end(pid int) {
	p.t.Helper()
	if err := os.RemoveAll(filepath.Join(p.dir, fmt.Sprint(pid))); err != nil {
		p.t.Fatal(err)
	}
}

// TestPIDOfAnother: DEL names the namespace of a container's process as long as it is the attached process. After its end the namespace counts as
// gone, even if another process has its PID, and even if that one's namespace has the same number. A restarted agent knows this too.
func TestPIDOfAnother(t *testing.T) {
	const path = "/proc/42/ns/net"
	for name, c := range map[string]struct {
		after func(procs)
		want  string
	}{
		"the same process":                      {func(procs) {}, path},
		"it has ended":                          {func(p procs) { p.end(42) }, ""},
		"another's PID":                         {func(p procs) { p.run(42, 9000, "net:[4026532999]") }, ""},
		"another's PID and the old number":      {func(p procs) { p.run(42, 9000, "net:[4026532001]") }, ""},
		"it has gone to another namespace":      {func(p procs) { p.run(42, 5000, "net:[4026532999]") }, ""},
		"the same figures, after another start": {func(p procs) { p.write("sys/kernel/random/boot_id", "two\n") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, twoPlugins)
			proc := procs{t, t.TempDir()}
			s.cfg.Proc = proc.dir
			proc.write("sys/kernel/random/boot_id", "one\n")
			proc.run(42, 5000, "net:[4026532001]")
			a := attachment("c1")
			a.Netns = path
			if _, err := s.plugins().Add(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			c.after(proc)
			if err := s.plugins().Del(t.Context(), "c1", path); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(s.leaseDir(), "c1.netns")); err != nil || string(got) != c.want {
				t.Errorf("DEL was asked with CNI_NETNS %q, want %q; %v", got, c.want, err)
			}
			if left := append(s.leases(), s.files()...); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestOriginOfOthers: a path that is not a process's namespace is passed on unchanged.
func TestOriginOfOthers(t *testing.T) {
	p := &Plugins{cfg: Config{Proc: t.TempDir()}}
	for _, netns := range []string{"", "none", "container:box", "/proc/self/ns/net", "/run/netns/x", "/proc/1/ns/net/x", "/proc/../ns/net"} {
		if got := p.origin(netns); got != "" {
			t.Errorf("%q: %q", netns, got)
		}
		if got := p.still(Attachment{Netns: netns}, netns); got != netns {
			t.Errorf("%q is passed on as %q", netns, got)
		}
	}
	if got := p.still(Attachment{Netns: "/proc/1/ns/net"}, "/proc/1/ns/net"); got != "/proc/1/ns/net" {
		t.Errorf("what an earlier version attached is passed on as %q", got)
	}
}
