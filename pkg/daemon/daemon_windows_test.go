package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/windows/svc"
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
	logEvent("winkube-test", errors.New("two\nlines")) // it may fail, and must not end the program
}
