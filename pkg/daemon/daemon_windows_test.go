package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// manage plays the service manager: it sends commands one after another and collects the states that are answered.
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
	logEvent("winkube-test", "a line", (*eventlog.Log).Info) // it may fail, and must not end the program
	for class, want := range map[string]string{"ABOVE_NORMAL_PRIORITY_CLASS": "", "FAST": "want one of"} {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		addServiceFlag(fs)
		err := errors.Join(fs.Set("windows-priorityclass", class), setPriority(fs))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("class %s: %v", class, err)
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

// TestServiceManager makes a service in the service manager that there is; the program is this test, which is none.
func TestServiceManager(t *testing.T) {
	const name = "winkube-test"
	m := windowsServices{}
	program, err := m.Executable()
	if err != nil || !m.Elevated() {
		t.Skipf("%v; elevated %v: a service cannot be made", err, m.Elevated())
	}
	t.Cleanup(func() {
		if err := m.Remove(name); err != nil {
			t.Error(err)
		}
	})
	want := Registration{Title: "A test", About: "Of the service manager.", Argv: []string{program, "--a=b c", `--d="e\`}, Env: []string{"A=1", "B=x y"}, Shutdown: time.Minute}
	for range 2 { // the second time it is changed
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
