package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTask(t *testing.T, name string) *task {
	t.Helper()
	return &task{name: name, began: time.Now(), path: filepath.Join(t.TempDir(), name), early: map[string]bool{}}
}

// TestTask follows a program's progress from its modules to its file.
func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newTask(t, "etcd")
		var log bytes.Buffer
		c := &compilation{tasks: []*task{one}, log: &log}
		write := func(text string) {
			for piece := range slices.Chunk([]byte(text), 5) {
				if _, err := c.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := func(want string) {
			t.Helper()
			if got := one.String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		want("etcd: building, 0 s")
		write("go: downloading go.uber.org/zap v1.27.0\ngo: downloading go.uber.org/multierr v1.11.0\n")
		want("etcd: 2 modules downloaded, 0 s")
		write("errors\nsomeone/else\n") // before its packages are known
		one.madeOf("go.etcd.io/etcd/server/v3", []string{"errors", "internal/abi", "unsafe"})
		want("etcd: 1 of 4 packages, 0 s")
		time.Sleep(34 * time.Second)
		write("internal/abi\nerrors\nalso/someone/else\n# go.etcd.io/etcd/server/v3\nmain.go:3:1: syntax error\n")
		want("etcd: 2 of 4 packages, 34 s")
		write("go.etcd.io/etcd/server/v3\n")
		want("etcd: linking, 34 s")
		write("no end")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"# go.etcd.io/etcd/server/v3\n", "main.go:3:1: syntax error\n", "go: downloading go.uber.org/zap v1.27.0\n", "no end"} {
			if !strings.Contains(log.String(), line) {
				t.Errorf("the log lacks %q:\n%s", line, log.String())
			}
		}
		if strings.Contains(log.String(), "internal/abi") {
			t.Errorf("the log has packages, among which errors drown:\n%s", log.String())
		}
		if err := os.WriteFile(one.path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		future := one.began.Add(time.Minute)
		if err := os.Chtimes(one.path, future, future); err != nil {
			t.Fatal(err)
		}
		want("etcd: built, 34 s")
	})
}

// watched runs a step that builds a program for the given time of the synctest bubble.
func watched(t *testing.T, terminal bool, long time.Duration, fail error) string {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		steps := newSteps(&out)
		steps.terminal = terminal
		one := newTask(t, "coredns")
		one.madeOf("main", []string{"a", "b"})
		_ = steps.Run(t.Context(), "build", func(context.Context) error {
			defer steps.show([]*task{one})()
			time.Sleep(long / 2)
			one.compiled("a")
			time.Sleep(long / 2)
			steps.note("coredns: done")
			return fail
		})
	})
	return out.String()
}

// TestProgressInLog: one line per program every 30 s, and the end of the step on a separate line.
func TestProgressInLog(t *testing.T) {
	const want = `[   0.0s] build ... 
           [  30.0s] coredns: 3 packages, none compiled yet, 30 s
           [  60.0s] coredns: 1 of 3 packages, 60 s
           [  90.0s] coredns: 1 of 3 packages, 90 s
[   0.0s] build ... ok (91.0 s)
           coredns: done
`
	if got := watched(t, false, 91*time.Second, nil); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := watched(t, false, 10*time.Second, nil), "[   0.0s] build ... ok (10.0 s)\n           coredns: done\n"; got != want {
		t.Errorf("a short step: got\n%s\nwant\n%s", got, want)
	}
	if got := watched(t, false, 31*time.Second, errors.New("it broke")); !strings.HasSuffix(got, "\n[   0.0s] build ... FAILED: it broke (31.0 s)\n           coredns: done\n") {
		t.Errorf("a step that fails: got\n%s", got)
	}
}

// TestProgressOnTerminal: the lines are rewritten, and none remains at the end.
func TestProgressOnTerminal(t *testing.T) {
	out := watched(t, true, 4*time.Second, nil)
	if !strings.Contains(out, "coredns: 1 of 3 packages, 3 s") {
		t.Errorf("no progress in %q", out)
	}
	if got, want := screen(out), "[   0.0s] build ... ok (4.0 s)\n           coredns: done\n"; got != want {
		t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
	}
}

var up = regexp.MustCompile(`^\r\x1b\[(\d+)A\x1b\[J`)

// screen returns what a terminal finally shows: it implements cursor up and clear below.
func screen(out string) string {
	lines := []string{""}
	for out != "" {
		if match := up.FindStringSubmatch(out); match != nil {
			n := int(match[1][0] - '0')
			lines = append(lines[:len(lines)-1-n:len(lines)-1-n], "")
			out = out[len(match[0]):]
			continue
		}
		if out[0] == '\n' {
			lines = append(lines, "")
		} else {
			lines[len(lines)-1] += out[:1]
		}
		out = out[1:]
	}
	return strings.Join(lines, "\n")
}

// TestBuildProgress builds a program with go: the progress matches go's output.
func TestBuildProgress(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.test/built\n\ngo 1.26\n",
		"main.go":     "package main\n\nimport \"example.test/built/part\"\n\nfunc main() { part.Do() }\n",
		"part/do.go":  "package part\n\nfunc Do() {}\n",
		"bad/main.go": "package main\n\nfunc main() { undefined() }\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := New(dir, io.Discard)
	env := []string{"CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off", "GOPROXY=off"}
	program := newTask(t, "built")
	listPackages(t.Context(), dir, []string{"."}, nil, env, []*task{program})
	for _, name := range []string{"example.test/built", "example.test/built/part", "runtime"} {
		if _, ok := program.packages[name]; !ok {
			t.Errorf("it is not known that the program holds %s: %d packages", name, len(program.packages))
		}
	}
	if err := c.build(t.Context(), "good", dir, dir, []string{"."}, []string{"built"}, nil, env, "go", "build", "-v", "-o", filepath.Join(dir, "built"), "."); err != nil {
		t.Fatal(err)
	}
	err := c.build(t.Context(), "bad", dir, dir, []string{"./bad"}, []string{"bad"}, nil, env, "go", "build", "-v", "-o", filepath.Join(dir, "bad.out"), "./bad")
	logged := new(LogError)
	if !errors.As(err, &logged) || !strings.Contains(tail(logged.Log, 20), "undefined: undefined") {
		t.Errorf("a program that does not compile: %v", err)
	}
	if len(c.steps.tasks) != 0 {
		t.Errorf("%d programs are still shown", len(c.steps.tasks))
	}
}
