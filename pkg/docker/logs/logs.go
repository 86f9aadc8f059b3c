// Package logs gives access to the logs of containers: reading and following them, their disk usage, and links for tools.
//
//	options, container --Logs--> the engine's files (Linux), or the engine --entries--> whole lines
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// Store accesses the logs of one engine's containers. All methods may be called concurrently.
type Store struct {
	engine  *engine.Client
	os      string // of the containers
	links   logLinks
	linking sync.Mutex // held while links are added or swept
}

// New returns a Store of e, whose containers are of system os: linux or windows. dir is where tools look for pods' logs (upstream's podLogsDir), next
// to the directory containers; "": no links.
func New(e *engine.Client, os, dir string) *Store {
	return &Store{engine: e, os: os, links: logLinks{dir}}
}

// Logs writes the log of a container, running or exited, as options request (v1.PodLogOptions, except Container and Previous). With Follow it ends
// when the container has ended and its output is delivered, or with ctx. A nil writer discards that stream. A terminal's log is all stdout.
//
// On Linux it reads the engine's files if possible: engines before 23 lose or repeat lines when a reader follows across a rotation, count pieces of
// long lines as lines, and stop at a line that a crash corrupted. Otherwise it asks the engine.
func (s *Store) Logs(ctx context.Context, containerID string, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	in, err := s.engine.Inspect(ctx, containerID)
	if err != nil {
		return err
	}
	return s.Read(ctx, in, options, stdout, stderr)
}

// Read is Logs for a container that was already inspected.
func (s *Store) Read(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	w := newLogWriter(options, s.engine.Clock().Now(), stdout, stderr)
	if w.out == nil && w.err == nil {
		return nil // the engine refuses a request for no stream
	}
	err := errNoLogFiles
	if files, ok := s.readable(in); ok {
		err = s.readLog(ctx, in.ID, files, options, w)
	}
	if errors.Is(err, errNoLogFiles) {
		err = s.askLog(ctx, in, options, w)
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// readLog reads the engine's files.
func (s *Store) readLog(ctx context.Context, id string, files Files, options *v1.PodLogOptions, w *logWriter) error {
	tail := int64(-1)
	if options.TailLines != nil {
		tail = *options.TailLines
	}
	r, err := files.read(tail)
	if err != nil {
		return err
	}
	defer r.close()
	if !options.Follow {
		return r.once(ctx, w)
	}
	changed, stop, err := watchDirectory(files.dir)
	if err != nil { // usually the host's limit of watches
		klog.V(2).InfoS("Cannot watch a container's log; the engine follows it instead", "container", engine.ShortID(id), "err", err)
		return errNoLogFiles
	}
	defer stop()
	waiting, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	var end sync.WaitGroup
	defer end.Wait()
	defer cancel()
	end.Go(func() {
		if s.awaitEnd(waiting, id) {
			close(ended)
		}
	})
	return r.follow(ctx, w, changed, ended)
}

// awaitEnd blocks until the container has ended and the engine has written its whole log; false: ctx ended first.
func (s *Store) awaitEnd(ctx context.Context, id string) bool {
	for backoff := engine.Reconnect(); ; {
		err := s.wait(ctx, id)
		if err == nil || cerrdefs.IsNotFound(err) {
			return true
		}
		select { // the engine may be restarting, and its containers may survive that
		case <-s.engine.Clock().After(backoff.Step()):
		case <-ctx.Done():
			return false
		}
	}
}

// wait makes one request to wait for the end of a container's run.
func (s *Store) wait(ctx context.Context, id string) error {
	inner, _, cancel := s.engine.Within(ctx, s.engine.Timeout())
	c, err := s.engine.API(inner)
	cancel()
	if err != nil {
		return err
	}
	answers, errs := c.ContainerWait(ctx, id, container.WaitConditionNotRunning)
	select {
	case <-answers:
		return nil
	case err := <-errs:
		return err
	}
}

// askLog has the engine read the log.
func (s *Store) askLog(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, w *logWriter) error {
	tty := in.Config.Tty
	ask := container.LogsOptions{
		ShowStdout: w.out != nil, ShowStderr: w.err != nil && !tty,
		Follow: options.Follow, Timestamps: options.Timestamps, Tail: "all",
	}
	if !ask.ShowStdout && !ask.ShowStderr {
		return nil
	}
	if options.TailLines != nil {
		ask.Tail = strconv.FormatInt(*options.TailLines, 10)
	}
	if !w.since.IsZero() {
		ask.Since = sinceText(w.since)
		w.since = time.Time{}
	}
	what := "read the log of container " + engine.ShortID(in.ID)
	inner, answered, cancel := s.engine.Within(ctx, s.engine.Timeout())
	defer cancel()
	c, err := s.engine.API(inner)
	if err != nil {
		return s.engine.Explain(ctx, inner, what, err)
	}
	body, err := c.ContainerLogs(inner, in.ID, ask)
	if err != nil {
		return s.engine.Explain(ctx, inner, what, err)
	}
	defer body.Close()
	answered()
	if tty { // no boundaries between messages
		err = engine.Receive(body, engine.Streams{TTY: true, Out: w.out})
	} else {
		timed := options.Timestamps
		err = engine.Receive(body, engine.Streams{Out: messages{w, streamStdout, timed}, Err: messages{w, streamStderr, timed}})
		if err == nil {
			err = w.end()
		}
	}
	return s.engine.Explain(ctx, inner, what, err)
}

// sinceText formats a time so that all engines can parse it.
func sinceText(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }
