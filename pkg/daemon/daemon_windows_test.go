package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"
)

// asService is the first argument of this program when the service manager starts it, the second says how it should end. asUser is the first argument
// of one that runs the command `service`.
const (
	asService = "serve-as-service"
	asUser    = "run-as-user"
)

func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != asService && os.Args[1] != asUser {
		os.Exit(m.Run())
	}
	if os.Args[1] == asUser {
		root := &cobra.Command{}
		AddServiceCommand(root, Program{Name: "winkube-test-user"})
		root.SetArgs(os.Args[2:])
		if root.Execute() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addServiceFlag(fs)
	err := errors.Join(fs.Set("windows-service", "true"), serve("winkube-test-service", fs, func(ctx context.Context) error {
		if os.Args[2] == "fail" {
			return errors.New("told to fail")
		}
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// testService prepares a test that creates a service of that name with this program. The service is removed after the test.
func testService(t *testing.T, name string) (m windowsServices, program string) {
	t.Helper()
	program, err := m.Executable()
	if err != nil || !m.Elevated() {
		t.Skipf("%v; elevated %v: a service cannot be made", err, m.Elevated())
	}
	t.Cleanup(func() {
		if err := m.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return m, program
}

// manage simulates the service manager: it sends commands in sequence and collects the reported states.
func manage(t *testing.T, s *service, commands ...svc.Cmd) (states []svc.State, ours bool, code uint32) {
	t.Helper()
	requests, answers := make(chan svc.ChangeRequest), make(chan svc.Status)
	done := make(chan struct{})
	go func() {
		ours, code = s.Execute(nil, requests, answers)
		close(done)
	}()
	for {
		select {
		case status := <-answers:
			states = append(states, status.State)
			if status.State == svc.Running && len(commands) > 0 {
				requests <- svc.ChangeRequest{Cmd: commands[0], CurrentStatus: svc.Status{State: svc.Running}}
				commands = commands[1:]
			}
		case <-done:
			return states, ours, code
		}
	}
}

func TestService(t *testing.T) {
	stopped := &service{run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	states, ours, code := manage(t, stopped, svc.Interrogate, svc.Stop)
	if len(states) != 4 || states[0] != svc.Running || states[1] != svc.Running || states[2] != svc.StopPending || ours || code != 0 || stopped.err != nil {
		t.Errorf("told to stop: states %v, code %v %d, %v", states, ours, code, stopped.err)
	}
	failed := &service{run: func(context.Context) error { return errors.New("no engine") }}
	states, ours, code = manage(t, failed)
	if states[len(states)-1] != svc.StopPending || !ours || code != 1 || failed.err == nil {
		t.Errorf("failed: states %v, code %v %d, %v", states, ours, code, failed.err)
	}
	done := &service{run: func(context.Context) error { return nil }}
	if _, ours, code = manage(t, done); ours || code != 0 {
		t.Errorf("ended by itself: code %v %d", ours, code)
	}
}

func TestServe(t *testing.T) {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addServiceFlag(fs)
	ran := false
	if err := serve("winkube-test", fs, func(context.Context) error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("on a console: ran %v, %v", ran, err)
	}
	if err := fs.Set("windows-service", "true"); err != nil {
		t.Fatal(err)
	}
	err := serve("winkube-test", fs, func(context.Context) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "--windows-service is for the service manager only") {
		t.Errorf("as a service without a service manager: %v", err)
	}
	for _, source := range []string{"winkube-test", "a\x00b"} {
		logEvent(source, "a line", (*eventlog.Log).Info) // it may fail, but must not end the program
	}
	for class, want := range map[string]string{"ABOVE_NORMAL_PRIORITY_CLASS": "", "FAST": "want one of"} {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		addServiceFlag(fs)
		err := errors.Join(fs.Set("windows-priorityclass", class), setPriority(fs))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("class %s: %v", class, err)
		}
		if has, err := windows.GetPriorityClass(windows.CurrentProcess()); want == "" && (err != nil || has != priorityClasses[class]) {
			t.Errorf("class %s was set, and is %#x, %v", class, has, err)
		}
	}
}

func TestShutdown(t *testing.T) {
	var cause error
	s := &service{run: func(ctx context.Context) error { <-ctx.Done(); cause = context.Cause(ctx); return nil }}
	if _, ours, code := manage(t, s, svc.PreShutdown); ours || code != 0 || !errors.Is(cause, ErrShutdown) {
		t.Errorf("before a shutdown: code %v %d, cause %v", ours, code, cause)
	}
}

// TestServiceManager creates a service in the real service manager; the program is this test, which is not a service.
func TestServiceManager(t *testing.T) {
	const name = "winkube-test"
	m, program := testService(t, name)
	want := Registration{Title: "A test", About: "Of the service manager.", Argv: []string{program, "--a=b c", `--d="e\`}, Env: []string{"A=1", "B=x y"}, Shutdown: time.Minute}
	for range 3 { // the second round changes it, the third changes nothing
		lacking, err := m.Write(name, want)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("this service manager lacks: %q", lacking)
		have, running, err := m.Read(name)
		if err != nil || have == nil || running.State != stateStopped || running.Exit != 0 {
			t.Fatalf("%+v %+v %v", have, running, err)
		}
		if !same(*have, want) {
			t.Errorf("have %+v\nwant %+v", *have, want)
		}
		recovers(t, name)
		if !hasSource(t, name) {
			t.Error("its lines in the event log would have no text: there is no source of its name")
		}
		want.Env, want.Title, want.Shutdown = nil, "Another", 2*time.Minute
	}
	if state, err := serviceState(name); err != nil || state != stateStopped {
		t.Errorf("state %q, %v", state, err)
	}
	if err := m.Remove(name); err != nil {
		t.Error(err)
	}
	if have, _, err := m.Read(name); err != nil || have != nil {
		t.Errorf("after it was removed: %+v, %v", have, err)
	}
	if hasSource(t, name) {
		t.Error("its source in the event log is left")
	}
	if state, err := serviceState(name); err != nil || state != "" {
		t.Errorf("of none: state %q, %v", state, err)
	}
	if err := m.Start(name); err == nil {
		t.Error("a service that is not there was started")
	}
	if err := m.Stop(name); err == nil {
		t.Error("a service that is not there was stopped")
	}
	AddServiceCommand(&cobra.Command{}, Program{Name: name})
}

// recovers checks that a service is restarted after a failure, if the service manager returns that setting. Wine's does not.
func recovers(t *testing.T, name string) {
	t.Helper()
	var actions []mgr.RecoveryAction
	err := withService(name, windows.SERVICE_QUERY_CONFIG, func(s *mgr.Service) (err error) {
		actions, err = s.RecoveryActions()
		return err
	})
	if errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		t.Logf("not seen: what is done after a failure: %v", err)
	} else if err != nil || !slices.Equal(actions, recovery()) {
		t.Errorf("after a failure: %v, %v; want %v", actions, err, recovery())
	}
}

// hasSource says whether the event log can find the message texts of a program.
func hasSource(t *testing.T, name string) bool {
	t.Helper()
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, sourcesKey+name, registry.QUERY_VALUE)
	if errors.Is(err, registry.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	file, _, err := key.GetStringValue("EventMessageFile")
	if err != nil || !strings.HasSuffix(strings.ToLower(file), "eventcreate.exe") {
		t.Errorf("the texts of %s are in %q, %v", name, file, err)
	}
	return true
}

// TestRunningService has the service manager start and stop this program, once as a failing one.
func TestRunningService(t *testing.T) {
	const name = "winkube-test-service"
	m, program := testService(t, name)
	install := func(how string) {
		t.Helper()
		if _, err := m.Write(name, Registration{Title: "A test", Argv: []string{program, asService, how}, Shutdown: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	within := func(do func(*mgr.Service) error) error { return withService(name, windows.SERVICE_QUERY_STATUS, do) }
	again := func(start func() error) { // once in hundreds of starts Wine hangs before it runs the program
		t.Helper()
		var err error
		for range 3 {
			if err = start(); err == nil {
				return
			}
			t.Log(err)
		}
		t.Fatal(err)
	}
	install("serve")
	tick, runs := make(chan time.Time), make(chan struct{})
	go func() {
		awaitServices(t.Context(), []string{name}, serviceState, tick, nil)
		close(runs)
	}()
	select {
	case tick <- time.Time{}: // it has queried, and waits
	case <-runs:
		t.Fatal("no one waits for a stopped service")
	}
	for range 2 { // in the second round it already runs, or has already stopped
		again(func() error { return m.Start(name) })
	}
	close(tick)
	<-runs
	err := within(func(s *mgr.Service) error { return reach(s, svc.Paused, -time.Second) })
	if err == nil || !strings.Contains(err.Error(), `want "`) {
		t.Errorf("a service that runs is paused: %v", err)
	}
	for range 2 {
		if err := m.Stop(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, running, err := m.Read(name); err != nil || running.State != stateStopped || running.Exit != 0 {
		t.Errorf("stopped: %+v, %v", running, err)
	}
	install("fail")
	again(func() error {
		_ = m.Start(name) // it may be seen running before it ends
		if err := within(func(s *mgr.Service) error { return reach(s, svc.Stopped, startPatience) }); err != nil {
			return err
		}
		_, running, err := m.Read(name)
		if err == nil && running.Exit != 1 {
			err = fmt.Errorf("it failed: %+v", *running)
		}
		return err
	})
	err = within(func(s *mgr.Service) error { return reach(s, svc.Running, startPatience) })
	if err == nil || !strings.Contains(err.Error(), "stopped again with code 1") {
		t.Errorf("a service that failed runs: %v", err)
	}
}

// TestNotElevated runs the command without administrator rights.
func TestNotElevated(t *testing.T) {
	_, program := testService(t, "winkube-test-user")
	limited, err := windows.GetCurrentProcessToken().GetLinkedToken()
	if err != nil || limited.IsElevated() {
		t.Skipf("this account has no other half without rights: %v", err)
	}
	defer limited.Close()
	for _, verb := range []string{"install", "uninstall", "start", "stop"} {
		if said, code := runAs(t, limited, program, asUser, "service", verb); code == 0 || !strings.Contains(said, "this needs administrator rights") {
			t.Errorf("service %s ends with %d and says %q", verb, code, said)
		}
	}
}

// runAs runs a program with a token, and returns its output and exit code.
func runAs(t *testing.T, token windows.Token, argv ...string) (string, int) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	process, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Files: []*os.File{nil, out, out}, Sys: &syscall.SysProcAttr{Token: syscall.Token(token)}})
	if closed := out.Close(); err != nil || closed != nil {
		t.Skipf("a program cannot be started with that token: %v, %v", err, closed)
	}
	said, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	state, err := process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return string(said), state.ExitCode()
}

// TestServiceManagerRefuses: each call that the service manager or the registry refuses is an error.
func TestServiceManagerRefuses(t *testing.T) {
	const none = "winkube-test-none"
	closed := &mgr.Service{Name: none}
	refused := func(what string, err error) {
		if err == nil {
			t.Errorf("done: %s", what)
		}
	}
	refused("a name with a zero in it", withService("a\x00b", windows.SERVICE_QUERY_STATUS, func(*mgr.Service) error { return nil }))
	_, err := query(closed)
	refused("query of a service that is closed", err)
	_, err = readRegistration(closed)
	refused("registration of a service that is closed", err)
	for _, words := range [][2]string{{"a\x00b", "title"}, {"line", "a\x00b"}, {"line", "title"}} {
		refused("change of a service that is closed", change(closed, words[0], words[1]))
	}
	_, err = setOptions(closed, Registration{About: "a\x00b"})
	refused("a description with a zero in it", err)
	if lacking, err := setOptions(closed, Registration{}); err != nil || len(lacking) == 0 {
		t.Errorf("options of a service that is closed: lacking %q, %v", lacking, err)
	}
	_, err = readEnvironment(none)
	refused("environment read", err)
	refused("environment written", writeEnvironment(none, nil))
	_, err = windowsServices{}.Write("a/b", Registration{Title: "A test", Argv: []string{"none.exe"}})
	refused("a service with a slash in its name", err)
}
