// Package daemon is the frame around both binaries: it sets up logging, says which version this is and runs the program until it is
// told to stop.
//
//	signals, or the Windows service manager --> ctx ends --> run returns --> exit code
//
// It knows nothing of Kubernetes but the version that we claim to be.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Run calls run and returns the exit code of the program: 0, or 1 after an error, which it prints as one line on stderr. The context
// of run ends on SIGINT or SIGTERM (Ctrl-C, Ctrl-Break and the closing of the console on Windows); a second signal ends the program
// immediately. On Windows with --windows-service the service manager takes the place of the signals, under serviceName. fs is what
// AddFlags was given, parsed. An error of run after it was told to stop that only repeats so (context.Canceled) is no error.
func Run(serviceName string, fs *pflag.FlagSet, run func(ctx context.Context) error) int {
	if err := startLogging(fs); err != nil {
		return report(os.Stderr, err)
	}
	defer klog.Flush()
	return report(os.Stderr, serve(serviceName, fs, run))
}

// console runs under the control of signals.
func console(run func(context.Context) error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return until(signals, func() { klog.Flush(); os.Exit(1) }, run)
}

// until runs run until it returns; the first signal ends its context, the second calls exit.
func until(signals <-chan os.Signal, exit func(), run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx) }() // awaited below, but for a second signal
	for {
		select {
		case err := <-done:
			return stopped(ctx, err)
		case s := <-signals:
			if ctx.Err() != nil {
				klog.InfoS("Exiting immediately after a second signal", "signal", s.String())
				exit()
				return fmt.Errorf("ended immediately by a second signal: %s", s)
			}
			klog.InfoS("Stopping", "signal", s.String())
			cancel()
		}
	}
}

// stopped drops the error with which a run says no more than that its context has ended.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// report prints err, if any, as one line and returns the exit code for it.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	klog.Flush()
	fmt.Fprintln(w, oneLine(err))
	return 1
}

// oneLine joins the lines of joined errors, so that a log or a person sees one message.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
