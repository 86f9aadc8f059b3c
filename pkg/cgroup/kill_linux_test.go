package cgroup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// living lists in each cgroup.procs those of its processes that are alive.
type living map[string][]int

func (l living) read(file string) (string, error) {
	pids, ok := l[strings.TrimSuffix(file, "/cgroup.procs")]
	if !ok {
		return "", fs.ErrNotExist
	}
	var text strings.Builder
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			fmt.Fprintln(&text, pid)
		}
	}
	return text.String(), nil
}

func (l living) list(dir string) (names []string, err error) {
	for each := range l {
		if path.Dir(each) == dir {
			names = append(names, path.Base(each))
		}
	}
	return names, nil
}

func (living) write(string, string) error { return fs.ErrPermission }
func (living) make(string) error          { return fs.ErrPermission }
func (living) remove(string) error        { return fs.ErrPermission }

// sleeper starts a process that runs until it is killed.
func sleeper(t *testing.T) *os.Process {
	t.Helper()
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// process is a sleeper that is reaped after it is killed.
func process(t *testing.T) int {
	t.Helper()
	p := sleeper(t)
	ended := make(chan error, 1)
	go func() {
		_, err := p.Wait()
		ended <- err
	}()
	t.Cleanup(func() {
		_ = p.Kill()
		<-ended
	})
	return p.Pid
}

// TestKill kills the processes in a container's cgroup and below it, and no others.
func TestKill(t *testing.T) {
	for name, dirs := range map[string][3]string{
		"cgroupfs": {"/cg/kubepods/podu1/c1", "/cg/kubepods/podu1/c1/in", "/cg/kubepods/podu1/c2"},
		"systemd": {"/cg/kubepods.slice/kubepods-podu1.slice/docker-c1.scope", "/cg/kubepods.slice/kubepods-podu1.slice/docker-c1.scope/in",
			"/cg/kubepods.slice/kubepods-podu1.slice/docker-c2.scope"},
	} {
		t.Run(name, func(t *testing.T) {
			own, below, other := process(t), process(t), process(t)
			tree := &Tree{files: living{dirs[0]: {own}, dirs[1]: {below}, dirs[2]: {other}}, v2: true, mounts: []mount{{dir: "/cg", root: "/", controllers: ","}}}
			if name == "systemd" {
				tree.systemd = &systemd{}
			}
			killed, err := tree.Kill(t.Context(), Group{"kubepods", "podu1"}, "c1")
			if want := []int{own, below}; err != nil || !slices.Equal(killed, want) {
				t.Errorf("killed %v (%v), want %v", killed, err, want)
			}
			for _, id := range []string{"", ".", "..", "../podu2/c1", "/"} { // nothing but a container
				if _, err := tree.Kill(t.Context(), Group{"kubepods", "podu1"}, id); err == nil {
					t.Errorf("id %q is accepted", id)
				}
			}
			if err := syscall.Kill(other, 0); err != nil {
				t.Errorf("the process of another container: %v", err)
			}
			for _, id := range []string{"c1", "c3"} {
				if killed, err := tree.Kill(t.Context(), Group{"kubepods", "podu1"}, id); err != nil || len(killed) > 0 {
					t.Errorf("%s, in which nothing runs: killed %v, %v", id, killed, err)
				}
			}
		})
	}
}

// TestKillEnds: a process that does not exit blocks Kill no longer than the caller allows.
func TestKillEnds(t *testing.T) {
	zombie := sleeper(t) // not reaped until the test ends, so that it remains after SIGKILL
	defer func() { _, _ = zombie.Wait() }()
	tree := &Tree{files: living{"/cg/p/c1": {zombie.Pid}}, v2: true, mounts: []mount{{dir: "/cg", root: "/", controllers: ","}}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if killed, err := tree.Kill(ctx, Group{"p"}, "c1"); err == nil || !slices.Equal(killed, []int{zombie.Pid}) {
		t.Errorf("killed %v, %v; want an error", killed, err)
	}
}
