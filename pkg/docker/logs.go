package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
)

// Logs writes the log of a container, running or exited, as options ask (v1.PodLogOptions, but for Container and Previous). With
// Follow it ends when the container has, or ctx. A nil writer: that stream is not wanted. A terminal's log is all stdout.
func (e *Engine) Logs(ctx context.Context, containerID string, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	in, err := e.inspect(ctx, containerID)
	if err != nil {
		return err
	}
	return e.logs(ctx, in, options, stdout, stderr)
}

func (e *Engine) logs(ctx context.Context, in container.InspectResponse, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	tty := in.Config.Tty
	ask := container.LogsOptions{
		ShowStdout: stdout != nil, ShowStderr: stderr != nil && !tty,
		Follow: options.Follow, Timestamps: options.Timestamps, Tail: "all",
	}
	if stream := options.Stream; stream != nil {
		ask.ShowStdout = ask.ShowStdout && *stream != v1.LogStreamStderr
		ask.ShowStderr = ask.ShowStderr && *stream != v1.LogStreamStdout
	}
	if !ask.ShowStdout && !ask.ShowStderr {
		return nil // the engine refuses a request for no stream
	}
	if options.TailLines != nil {
		ask.Tail = strconv.FormatInt(*options.TailLines, 10)
	}
	switch {
	case options.SinceTime != nil:
		ask.Since = sinceText(options.SinceTime.Time)
	case options.SinceSeconds != nil:
		ask.Since = sinceText(e.clock.Now().Add(-time.Duration(*options.SinceSeconds) * time.Second))
	}
	what := "read the log of container " + short(in.ID)
	inner, answered, cancel := e.within(ctx, e.cfg.CallTimeout)
	defer cancel()
	c, err := e.api(inner)
	if err != nil {
		return e.explain(ctx, inner, what, err)
	}
	body, err := c.ContainerLogs(inner, in.ID, ask)
	if err != nil {
		return e.explain(ctx, inner, what, err)
	}
	defer body.Close()
	answered()
	s := streams{tty: tty, out: stdout, err: stderr}
	if options.LimitBytes != nil {
		left := *options.LimitBytes
		s.out, s.err = limited{stdout, &left}, limited{stderr, &left}
	}
	if err = receive(body, s); errors.Is(err, errLimit) {
		return nil
	}
	return e.explain(ctx, inner, what, err)
}

// sinceText is a time as all engines parse it.
func sinceText(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }

var errLimit = errors.New("limit of bytes reached")

// limited passes on the first bytes of several streams together, and then fails.
type limited struct {
	to   io.Writer
	left *int64
}

func (l limited) Write(p []byte) (int, error) {
	room := min(int64(len(p)), *l.left)
	*l.left -= room
	if l.to != nil {
		if n, err := l.to.Write(p[:room]); err != nil {
			return n, err
		}
	}
	if *l.left == 0 {
		return int(room), errLimit
	}
	return len(p), nil
}
