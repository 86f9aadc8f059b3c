package windows

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/winkube/winkube/test/windows/rig"
)

// start starts one of our binaries and ends it with the test. Its log is printed when the test failed.
func start(t *testing.T, p *rig.Prefix, env []string, exe string, args ...string) {
	t.Helper()
	startToStop(t, p, env, exe, args...)
}

// startToStop is start, for a program that is killed before the test ends.
func startToStop(t *testing.T, p *rig.Prefix, env []string, exe string, args ...string) (stop func()) {
	t.Helper()
	path, err := filepath.Abs("../../_output/bin/windows/amd64/" + exe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run KUBE_BUILD_PLATFORMS=windows/amd64 make", err)
	}
	var log bytes.Buffer
	cmd := p.Command(t.Context(), path, args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("%s printed:\n%s", exe, log.String())
		}
	})
	return stop
}
