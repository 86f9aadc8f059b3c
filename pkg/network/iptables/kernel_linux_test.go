package iptables

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/pkg/command"
)

// In a separate network namespace the test lets the real iptables print and repair what we wrote.
func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	run := command.New()
	if _, err := run.Run(t.Context(), nil, "iptables-save", "-V"); errors.Is(err, command.ErrNotFound) {
		t.Skip("this machine has no iptables")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	restore := func(script string) {
		t.Helper()
		if _, err := run.Run(ctx, []byte(script), "iptables-restore"); err != nil {
			t.Fatal(err)
		}
	}
	restore("*filter\n:DOCKER-USER - [0:0]\n:DOCKER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\nCOMMIT\n")
	f := New(run, "/proc/sys")
	want := rules("10.244.1.0/24", "fd00:244:1::/64")
	for i := range 2 {
		if err := f.Apply(ctx, want); err != nil {
			t.Fatal(err)
		}
		for _, tool := range []string{"iptables-save", "ip6tables-save"} {
			for _, c := range chainsOf(want[len(tool)-len("iptables-save"):][:1]) {
				saved, err := run.Run(ctx, nil, tool, "-t", c.table)
				if lines := c.diff(string(saved)); err != nil || len(lines) > 0 {
					t.Errorf("round %d: %s prints it otherwise: %q, %v\n%s", i, tool, lines, err, saved)
				}
			}
		}
	}
	saved, err := run.Run(ctx, nil, "iptables-save", "-t", "filter")
	if err != nil || !strings.Contains(string(saved), "-A FORWARD -j DOCKER-USER\n-A FORWARD -j WINKUBE-FORWARD\n-A FORWARD -o docker0 -j DOCKER\n") {
		t.Errorf("order: %v\n%s", err, saved)
	}
	restore("*filter\nCOMMIT\n*nat\nCOMMIT\n") // everything is flushed
	if err := f.Apply(ctx, want); err != nil {
		t.Error(err)
	}
	if err := f.Apply(ctx, nil); err != nil {
		t.Error(err)
	}
	for _, tool := range []string{"iptables-save", "ip6tables-save"} {
		if saved, err := run.Run(ctx, nil, tool); err != nil || strings.Contains(string(saved), "WINKUBE") {
			t.Errorf("left behind: %v\n%s", err, saved)
		}
	}
}
