package daemon

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"k8s.io/klog/v2"
)

func addServiceFlag(fs *pflag.FlagSet) {
	fs.Bool("windows-service", false, "run as a Windows service, started and stopped by the service manager")
}

// serve asks the flag, not svc.IsWindowsService, which is wrong in some sessions and under Wine.
func serve(name string, fs *pflag.FlagSet, run func(context.Context) error) error {
	if asService, err := fs.GetBool("windows-service"); err != nil || !asService {
		return console(run)
	}
	s := &service{run: run}
	if err := svc.Run(name, s); err != nil {
		return fmt.Errorf("cannot run as Windows service %s (--windows-service is for the service manager only): %w", name, err)
	}
	if s.err != nil {
		logEvent(name, s.err)
	}
	return s.err
}

// service is what the service manager speaks to.
type service struct {
	run func(context.Context) error
	err error
}

// stopHint is the time, in milliseconds, that the service manager may wait for us to stop before it takes us for hung.
const stopHint = 30_000

// Execute implements svc.Handler. An error of run ends the service with a code of its own, so that its recovery actions apply.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
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
				cancel()
			}
		}
	}
}

// exitCode is what Execute answers at the end.
func (s *service) exitCode() (ours bool, code uint32) {
	if s.err != nil {
		return true, 1
	}
	return false, 0
}

// logEvent puts the last error into the Application log, for a service has no stderr that anyone sees. Failing to is only logged.
func logEvent(name string, reason error) {
	log, err := eventlog.Open(name)
	if err != nil {
		klog.ErrorS(err, "Cannot open the event log", "source", name)
		return
	}
	defer log.Close()
	if err := log.Error(1, oneLine(reason)); err != nil {
		klog.ErrorS(err, "Cannot write to the event log", "source", name)
	}
}
