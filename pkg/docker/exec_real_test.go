package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestExecTimeoutReal: a command that exceeds its time is really killed, with its descendants, and neither the agent nor, after its own cleanup, the
// engine keeps data of ended commands.
func TestExecTimeoutReal(t *testing.T) {
	r := realRig(t, nil)
	p := r.pod("timeout", []string{"pause"})
	id := r.run(p)[0]
	mark := r.cfg.Node
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // longer than the engine takes to start a command on a slow machine
	defer cancel()
	begin := time.Now()
	if _, _, err := r.ExecSync(ctx, id, []string{programPath, "family", mark}, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	t.Logf("a command of 3 s returned after %.2f s", time.Since(begin).Seconds())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // the kernel has no event for the ends of others' children
		left := processes(t, mark)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %q", left)
		}
	}

	const runs = 200
	before, files := runtime.NumGoroutine(), openFiles(t)
	for range runs {
		if code, _, err := r.ExecSync(t.Context(), id, []string{programPath, "exit", "3"}, 10); err != nil || code != 3 {
			t.Fatal(code, err)
		}
	}
	in, err := r.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("after %d commands: goroutines %d, were %d; open files %d, were %d; the container has %d exec ids", runs, runtime.NumGoroutine(), before,
		openFiles(t), files, len(in.ExecIDs))
	if runtime.NumGoroutine() > before+10 || openFiles(t) > files+10 {
		t.Error("something of ended commands is left")
	}
}

// processes lists the command lines with mark in them.
func processes(t *testing.T, mark string) []string {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range names {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), mark) {
			out = append(out, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return out
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
