package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"k8s.io/klog/v2"
)

func addServiceFlag(fs *pflag.FlagSet) { addWindowsFlags(fs) }

// setPriority sets the priority class of this process.
func setPriority(fs *pflag.FlagSet) error {
	f := fs.Lookup("windows-priorityclass")
	if f == nil || !f.Changed {
		return nil
	}
	class, err := priorityClass(f.Value.String())
	if err != nil {
		return err
	}
	if err := windows.SetPriorityClass(windows.CurrentProcess(), class); err != nil {
		return fmt.Errorf("--windows-priorityclass=%s: %w", f.Value, err)
	}
	return nil
}

// AsService says whether the service manager started this program.
func AsService(fs *pflag.FlagSet) bool {
	asService, err := fs.GetBool("windows-service")
	return err == nil && asService
}

// UntilShutdown ends with ctx or stop: the service manager itself reports a shutdown.
func UntilShutdown(ctx context.Context, _ string, _ time.Duration) (_ context.Context, stop func()) {
	return context.WithCancel(ctx)
}

// neededPatience is how long to wait for the services of needed after a boot. Then we start anyway, and report on the Node what is missing.
const neededPatience = 3 * time.Minute

// serve relies on the flag, not on svc.IsWindowsService, which is wrong in some sessions and under Wine.
func serve(name string, fs *pflag.FlagSet, run func(context.Context) error) error {
	if err := setPriority(fs); err != nil {
		return err
	}
	if !AsService(fs) {
		return console(run)
	}
	s := &service{run: func(ctx context.Context) error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		awaitServices(ctx, needed, serviceState, tick.C, time.After(neededPatience))
		logEvent(name, "started, version "+Version, (*eventlog.Log).Info)
		return run(ctx)
	}}
	if err := svc.Run(name, s); err != nil {
		return fmt.Errorf("cannot run as Windows service %s (--windows-service is for the service manager only): %w", name, err)
	}
	if s.err != nil {
		logEvent(name, oneLine(s.err), (*eventlog.Log).Error)
	} else {
		logEvent(name, "stopped", (*eventlog.Log).Info)
	}
	return s.err
}

// service handles requests of the service manager.
type service struct {
	run func(context.Context) error
	err error
}

// stopHint is the time, in milliseconds, that we may take to stop before the service manager considers us hung.
const stopHint = 30_000

// Execute implements svc.Handler. An error of run ends the service with our own code, so that its recovery actions apply.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }() // awaited below
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown}
	for {
		select {
		case err := <-done:
			status <- svc.Status{State: svc.StopPending}
			s.err = stopped(ctx, err)
			return s.exitCode()
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown, svc.PreShutdown:
				klog.InfoS("Stopping", "command", r.Cmd)
				status <- svc.Status{State: svc.StopPending, WaitHint: stopHint}
				cancel(reasonOf(r.Cmd))
			}
		}
	}
}

// exitCode returns the results of Execute.
func (s *service) exitCode() (ours bool, code uint32) {
	if s.err != nil {
		return true, 1
	}
	return false, 0
}

// reasonOf is the cause with which the context of run ends.
func reasonOf(command svc.Cmd) error {
	if command == svc.PreShutdown {
		return ErrShutdown
	}
	return context.Canceled
}

// logEvent writes a line to the Application log, since a service has no visible stderr. A failure is only logged.
func logEvent(name, text string, write func(log *eventlog.Log, id uint32, text string) error) {
	log, err := eventlog.Open(name)
	if err == nil {
		err = errors.Join(write(log, 1, text), log.Close())
	}
	if err != nil {
		klog.ErrorS(err, "Cannot write to the event log", "source", name)
	}
}
