package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// scm is a service manager with at most one service. It refuses the same calls as Windows'.
type scm struct {
	user   bool // without rights
	poor   bool // knows no delayed start, like Wine's
	have   *Registration
	state  Running
	writes int
	broken error // of Start
	exe    string
	alien  string // a program owned by another account
}

func (m *scm) Elevated() bool { return !m.user }
func (m *scm) Trusted(path string) error {
	if m.alien != "" && path == m.alien {
		return checkOwner(path, "S-1-5-21-1-2-3-1001")
	}
	return nil
}
func (m *scm) Executable() (string, error) {
	return cmp.Or(m.exe, `C:\Program Files\k\kubelet.exe`), nil
}

func (m *scm) Read(string) (*Registration, *Running, error) {
	if m.have == nil {
		return nil, nil, nil
	}
	have, state := *m.have, m.state
	return &have, &state, nil
}

func (m *scm) Write(_ string, want Registration) ([]string, error) {
	if m.user || len(want.Argv) == 0 || want.Shutdown <= 0 {
		return nil, errors.New("access denied, or no program")
	}
	if m.have == nil {
		m.state = Running{State: stateStopped}
	}
	m.have = &want
	m.writes++
	if m.poor {
		return []string{"delayed start"}, nil
	}
	return nil, nil
}

func (m *scm) Remove(string) error {
	if m.have != nil && m.state.State != stateStopped {
		return errors.New("marked for deletion only: it runs")
	}
	m.have = nil
	return nil
}

func (m *scm) Start(string) error {
	if m.have == nil || m.state.State != stateStopped {
		return errors.New("not there, or running already")
	}
	if m.broken != nil {
		m.state.Exit = 1
		return m.broken
	}
	m.state = Running{State: stateRunning, PID: 42}
	return nil
}

func (m *scm) Stop(string) error {
	if m.have == nil || m.state.State == stateStopped {
		return errors.New("not there, or not running")
	}
	m.state = Running{State: stateStopped}
	return nil
}

// TestServiceCommand goes through the life of a service; the output is in testdata/service.txt (-update rewrites it).
func TestServiceCommand(t *testing.T) {
	var out bytes.Buffer
	env := map[string]string{"CONTAINER_NETWORK": "pods", "EMPTY": ""}
	m := &scm{}
	c := &serviceCommand{manager: m, out: &out, lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		program: Program{Name: "kubelet", Title: "Kubernetes node agent", About: "Runs pods.", Env: []string{"CONTAINER_NETWORK", "EMPTY"},
			Check: func(args []string) (time.Duration, error) {
				if !slices.Contains(args, "--kubeconfig=C:\\k\\config") {
					return 0, errors.New("want exactly one of --kubeconfig and --api-servers")
				}
				if slices.Contains(args, "--shutdown-grace-period=2m") {
					return 135 * time.Second, nil
				}
				return 0, nil
			}}}
	do := func(line string, args ...string) {
		fmt.Fprintf(&out, "> kubelet.exe service %s\n", strings.TrimSpace(line+" "+strings.Join(args, " ")))
		command := newServiceCommand(c)
		command.SetArgs(append([]string{line}, args...))
		command.SilenceErrors, command.SilenceUsage = true, true
		if err := command.Execute(); err != nil {
			fmt.Fprintf(&out, "kubelet: %v\n", err)
		}
	}
	m.user = true
	do("install", "--kubeconfig=C:\\k\\config")
	do("status")
	m.user = false
	do("start")
	do("install")
	do("install", "--v=2")
	do("install", "--windows-service", "--kubeconfig=C:\\k\\config", "--v=2")
	do("install")
	do("stop")
	do("start")
	do("start")
	do("status")
	delete(env, "CONTAINER_NETWORK") // another shell
	m.poor = true
	do("install", "--kubeconfig=C:\\k\\config", "--log_file=D:\\log\\kubelet.log", "--shutdown-grace-period=2m", "--node-labels=a b=c d")
	do("status")
	do("stop")
	do("install", "--kubeconfig=C:\\k\\config")
	m.broken = errors.New("cannot start kubelet: the service did not respond")
	do("start")
	m.broken = nil
	do("start")
	do("uninstall")
	do("uninstall")
	do("stop")
	if m.writes != 3 {
		t.Errorf("%d writes, want 3: what is as wanted is not written", m.writes)
	}
	compare(t, "service.txt", out.String())
}

// TestServiceOfCommand: a service can run a subcommand of a program. It has no upgrade; the program's own service has.
func TestServiceOfCommand(t *testing.T) {
	var out bytes.Buffer
	var checked []string
	m := &scm{}
	c := &serviceCommand{manager: m, out: &out, lookup: os.LookupEnv, program: Program{Name: "kubelet-cri", Command: []string{"cri"},
		Check: func(args []string) (time.Duration, error) { checked = args; return 0, nil }}}
	argv := []string{`C:\Program Files\k\kubelet.exe`, "cri", "--windows-service", `--log-file=C:\var\log\kubelet-cri\kubelet-cri.log`, "--v=2"}
	for _, args := range [][]string{{"--v=2"}, nil, {"--windows-service", "--v=2"}} {
		if err := c.do("install", args); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.have.Argv, argv) || slices.Contains(checked, "cri") || m.writes != 1 {
			t.Errorf("%q: the service has %q after %d writes, checked was %q", args, m.have.Argv, m.writes, checked)
		}
	}
	for _, verb := range newServiceCommand(c).Commands() {
		if name := verb.Name(); name == "upgrade" || name == "rollback" {
			t.Errorf("there is kubelet.exe cri service %s", name)
		}
	}
}

// TestServicePrepares: the host is prepared before the service is installed, and only when the service changes.
func TestServicePrepares(t *testing.T) {
	m, prepared, fails := &scm{}, 0, errors.New("no disk")
	c := &serviceCommand{manager: m, out: &bytes.Buffer{}, lookup: os.LookupEnv, program: Program{Name: "kubelet",
		Check:   func([]string) (time.Duration, error) { return 0, nil },
		Prepare: func([]string) error { prepared++; return fails }}}
	if err := c.do("install", []string{"--v=2"}); !errors.Is(err, fails) || m.have != nil {
		t.Errorf("%v; the service manager has %+v", err, m.have)
	}
	fails = nil
	for range 2 {
		if err := c.do("install", []string{"--v=2"}); err != nil || prepared != 2 || m.writes != 1 {
			t.Errorf("%v; prepared %d times, written %d times", err, prepared, m.writes)
		}
	}
}

func TestStateName(t *testing.T) {
	for state, want := range map[uint32]string{0: "unknown (0)", 1: stateStopped, 2: "start pending", 4: stateRunning, 7: "paused", 8: "unknown (8)"} {
		if got := stateName(state); got != want {
			t.Errorf("%d: %q, want %q", state, got, want)
		}
	}
}

// compare compares a text with a golden file, or writes the file if UPDATE_GOLDEN is set (make golden).
func compare(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(want), "\r\n", "\n") != got {
		t.Errorf("%s differs, -update rewrites it:\n%s", path, got)
	}
}
