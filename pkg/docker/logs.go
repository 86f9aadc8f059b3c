package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// Logs writes the log of a container, running or exited, as options ask (v1.PodLogOptions, but for Container and Previous). With
// Follow it ends when the container has and all it wrote was delivered, or with ctx. A nil writer: that stream is not wanted. A
// terminal's log is all stdout.
//
// On Linux the engine's files are read where they can be: engines before 23 lose or repeat lines for a reader that follows across a
// rotation, count pieces of long lines as lines, and stop at a line that a crash left broken. Elsewhere the engine is asked.
func (e *Engine) Logs(ctx context.Context, containerID string, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	in, err := e.Inspect(ctx, containerID)
	if err != nil {
		return err
	}
	return e.logs(ctx, in, options, stdout, stderr)
}

func (e *Engine) logs(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	w := newLogWriter(options, e.Clock().Now(), stdout, stderr)
	if w.out == nil && w.err == nil {
		return nil // the engine refuses a request for no stream
	}
	err := errNoLogFiles
	if files, ok := e.logFiles(in); ok {
		err = e.readLog(ctx, in.ID, files, options, w)
	}
	if errors.Is(err, errNoLogFiles) {
		err = e.askLog(ctx, in, options, w)
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// readLog reads the engine's files.
func (e *Engine) readLog(ctx context.Context, id string, files logFiles, options *v1.PodLogOptions, w *logWriter) error {
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
	if err != nil { // the host's limit of watches, as a rule
		klog.V(2).InfoS("Cannot watch a container's log; the engine follows it instead", "container", engine.ShortID(id), "err", err)
		return errNoLogFiles
	}
	defer stop()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	return r.follow(ctx, w, changed, e.ended(waiting, id))
}

// ended returns a channel that is closed when the container has ended and the engine has written all of its log.
func (e *Engine) ended(ctx context.Context, id string) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		for backoff := engine.Reconnect(); ; {
			err := e.awaitEnd(ctx, id)
			if err == nil || cerrdefs.IsNotFound(err) {
				close(done)
				return
			}
			select { // an engine that is being restarted: its containers may go on
			case <-e.Clock().After(backoff.Step()):
			case <-ctx.Done():
				return
			}
		}
	}()
	return done
}

// awaitEnd blocks until the container does not run.
func (e *Engine) awaitEnd(ctx context.Context, id string) error {
	inner, _, cancel := e.Within(ctx, e.Timeout())
	c, err := e.API(inner)
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
func (e *Engine) askLog(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, w *logWriter) error {
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
	inner, answered, cancel := e.Within(ctx, e.Timeout())
	defer cancel()
	c, err := e.API(inner)
	if err != nil {
		return e.Explain(ctx, inner, what, err)
	}
	body, err := c.ContainerLogs(inner, in.ID, ask)
	if err != nil {
		return e.Explain(ctx, inner, what, err)
	}
	defer body.Close()
	answered()
	if tty { // without borders between messages
		err = engine.Receive(body, engine.Streams{TTY: true, Out: w.out})
	} else {
		timed := options.Timestamps
		err = engine.Receive(body, engine.Streams{Out: messages{w, streamStdout, timed}, Err: messages{w, streamStderr, timed}})
		if err == nil {
			err = w.end()
		}
	}
	return e.Explain(ctx, inner, what, err)
}

// sinceText is a time as all engines parse it.
func sinceText(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }
