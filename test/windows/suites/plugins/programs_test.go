package plugins

import (
	"context"
	"flag"
	"net"
	"os"
	"testing"

	"github.com/winkube/winkube/test/windows/cniplugins"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// program returns another project's program.
func program(t *testing.T, name string) (exe, version string) {
	t.Helper()
	exe, version, err := cniplugins.Program(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return exe, version
}

// simulated returns a host of that build whose programs use the simulators.
func simulated(ctx context.Context, t *testing.T, build int) (*sim.World, *rig.Prefix) {
	t.Helper()
	return simulatedWith(ctx, t, hns.Options{Build: build})
}

// simulatedWith is simulated with the ways in which HNS answers.
func simulatedWith(ctx context.Context, t *testing.T, answers hns.Options) (*sim.World, *rig.Prefix) {
	t.Helper()
	p, w := rig.Test(t, answers.Build), sim.NewWith(answers)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(l)
	t.Cleanup(w.Close)
	if err := w.Install(ctx, p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("calls:\n%s", w.Log)
		}
		if unknown := w.Log.Unknown(); len(unknown) > 0 {
			t.Errorf("the simulators were asked for what they do not know: %v", unknown)
		}
	})
	return w, p
}

// golden compares text with a file, or writes it with -update.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || text != string(want) {
		t.Errorf("%s: %v; got\n%s\nwant\n%s", path, err, text, want)
	}
}
