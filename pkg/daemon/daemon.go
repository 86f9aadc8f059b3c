// Package daemon is the common frame of both binaries: it sets up logging, prints the version and runs the program until it is stopped.
//
//	signals, or the Windows service manager --> ctx ends --> run returns --> exit code
//
// It knows nothing about Kubernetes except the version that we claim to be.
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

// Run calls run and returns the program's exit code: 0, or 1 after an error, which it prints as one line on stderr. The context of run ends on SIGINT
// or SIGTERM (Ctrl-C, Ctrl-Break and closing the console on Windows); a second signal ends the program immediately. On Windows with --windows-service
// the service manager replaces the signals, under serviceName. fs is the parsed flag set from AddFlags. Run ignores context.Canceled from run after
// the context has ended.
func Run(serviceName string, fs *pflag.FlagSet, run func(ctx context.Context) error) int {
	if err := startLogging(fs); err != nil {
		return report(os.Stderr, err)
	}
	defer klog.Flush()
	return report(os.Stderr, serve(serviceName, fs, run))
}

// console runs the program under the control of signals.
func console(run func(context.Context) error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return until(signals, func() { klog.Flush(); os.Exit(1) }, run)
}

// until calls run and waits for it; the first signal ends its context, the second calls exit.
func until(signals <-chan os.Signal, exit func(), run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx) }() // awaited below, unless a second signal arrives
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

// stopped drops an error that only repeats that the context has ended.
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

// oneLine joins the lines of joined errors, so that logs and people get one message.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
