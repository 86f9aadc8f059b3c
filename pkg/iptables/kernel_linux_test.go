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

// In a separate network namespace the real iptables prints and repairs our rules.
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
	keepsDirect(t, f, run, restore)
	restore("*filter\nCOMMIT\n*nat\nCOMMIT\n*raw\nCOMMIT\n") // everything is flushed
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

// keepsDirect checks that the rules that the real iptables prints for a container of Docker 28 are recognized.
func keepsDirect(t *testing.T, f *Filter, run command.Runner, restore func(script string)) {
	t.Helper()
	guarded := rules("10.244.1.0/24")
	guarded[0].Guarded = "winkube0"
	restore("*raw\n-A PREROUTING -i eth1 -j DROP\n-A PREROUTING -d 10.244.1.2 ! -i winkube0 -j DROP\nCOMMIT\n")
	for i := range 2 {
		if err := f.Apply(t.Context(), guarded); err != nil {
			t.Fatal(err)
		}
		saved, err := run.Run(t.Context(), nil, "iptables-save", "-t", "raw")
		if err != nil || !strings.Contains(string(saved), "-A PREROUTING -i eth1 -j DROP\n-A PREROUTING -j WINKUBE-DIRECT\n-A PREROUTING -d 10.244.1.2/32 ! -i winkube0 -j DROP\n") ||
			!strings.Contains(string(saved), "-A WINKUBE-DIRECT -d 10.244.1.0/24 -j ACCEPT\n") {
			t.Errorf("round %d: %v\n%s", i, err, saved)
		}
		if lines := direct(guarded).diff(string(saved)); len(lines) > 0 {
			t.Errorf("round %d: iptables-save prints it otherwise: %q\n%s", i, lines, saved)
		}
	}
}
