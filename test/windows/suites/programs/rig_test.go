package programs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/test/windows/rig"
)

// start starts one of our programs and stops it when the test ends. If the test fails, it prints the program's log.
func start(t *testing.T, p *rig.Prefix, env []string, exe string, args ...string) {
	t.Helper()
	startToStop(t, p, env, exe, args...)
}

// startToStop is start for a program that the test kills earlier.
func startToStop(t *testing.T, p *rig.Prefix, env []string, exe string, args ...string) (stop func()) {
	t.Helper()
	path := program(t, exe)
	for range 3 {
		log := &firstWord{said: make(chan struct{})}
		cmd := p.Command(t.Context(), path, args...)
		cmd.Env = append(cmd.Env, env...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop = sync.OnceFunc(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		select {
		case <-log.said:
		case <-time.After(time.Minute):
			t.Logf("Wine has not brought %s to its first word, and is asked again; its threads wait in: %s", exe, waits(cmd.Process.Pid))
			stop()
			continue
		}
		t.Cleanup(func() {
			stop()
			if t.Failed() {
				t.Logf("%s printed:\n%s", exe, log.text.String())
			}
		})
		return stop
	}
	t.Fatalf("%s says nothing", exe)
	return nil
}

// program returns kubelet.exe or proxy.exe: in short tests as built by make, otherwise with coverage counters.
func program(t *testing.T, exe string) string {
	t.Helper()
	if !testing.Short() {
		return rig.Counted(t, map[string]string{"kubelet.exe": "./cmd/kubelet", "proxy.exe": "./cmd/kube-proxy"}[exe], exe)
	}
	path, err := filepath.Abs("../../../../_output/bin/windows/amd64/" + exe)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run KUBE_BUILD_PLATFORMS=windows/amd64 make", err)
	}
	return path
}

// firstWord keeps a program's output and reports when it begins. Wine hangs before it runs the program once in hundreds of starts.
type firstWord struct {
	text bytes.Buffer
	said chan struct{}
}

func (w *firstWord) Write(p []byte) (int, error) {
	if w.text.Len() == 0 && len(p) > 0 {
		close(w.said)
	}
	return w.text.Write(p)
}

// waits returns the kernel functions in which a program's threads wait.
func waits(pid int) string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	var all []string
	for _, file := range files {
		call, _ := os.ReadFile(file)
		all = append(all, string(call))
	}
	return strings.Join(all, " ")
}
