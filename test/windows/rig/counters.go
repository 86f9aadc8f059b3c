package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// environmentKey holds the variables of services, which inherit none from a command line.
const environmentKey = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Control\Session Manager\Environment`

// countersVariable names the directory for coverage counters. Programs without counters ignore it.
const countersVariable = "GOCOVERDIR"

// BuildCounted builds a package of this repository into out, for Windows, with coverage counters. flags are go build's.
func BuildCounted(ctx context.Context, out, pkg string, flags ...string) error {
	args := append([]string{"build", "-cover", "-tags=grpcnotrace"}, flags...) // the same tag as in hack/build.sh, so that dependencies are compiled once
	return Go(ctx, append(args, "-o", out, pkg)...)
}

var counted = struct {
	sync.Mutex
	paths map[string]string
}{paths: map[string]string{}}

// Counted builds a package of this repository with coverage counters, once per test process, and returns the program's path. Each suite has its
// own copy, so that no build replaces a program that another suite runs.
func Counted(t testing.TB, pkg, exe string) string {
	t.Helper()
	counted.Lock()
	defer counted.Unlock()
	if path := counted.paths[exe]; path != "" {
		return path
	}
	dir, err := wineDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "counted", suite(), exe)
	if err := BuildCounted(t.Context(), path, pkg); err != nil {
		t.Fatalf("cannot build %s: %v", exe, err)
	}
	counted.paths[exe] = path
	return path
}

// suite returns the directory name of the package under test.
func suite() string {
	dir, err := os.Getwd()
	if err != nil {
		return "unknown"
	}
	return filepath.Base(dir)
}

// counters returns the directory for counters of programs that exit normally.
func (p *Prefix) counters() string { return filepath.Join(p.Dir, "counters") }

// WriteProfile converts the counters of the programs that ran in the prefix and exited normally into a profile, _output/wine/cover/NAME.txt,
// for test/windows/cover. It replaces the profile of an earlier run. Without counters there is no profile.
func (p *Prefix) WriteProfile(name string) error {
	dir, err := wineDir()
	if err != nil {
		return err
	}
	profile := filepath.Join(dir, "cover", strings.ReplaceAll(name, "/", "-")+".txt")
	entries, err := os.ReadDir(p.counters())
	if err != nil || len(entries) == 0 {
		_ = os.Remove(profile) // of an earlier run
		return err
	}
	if err := os.MkdirAll(filepath.Dir(profile), 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", "covdata", "textfmt", "-i="+p.counters(), "-o="+profile)
	if said, err := output.Of(cmd); err != nil {
		return fmt.Errorf("cannot read the counters of coverage in %s: %w: %s", p.counters(), err, said)
	}
	return nil
}
