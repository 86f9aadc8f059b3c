// Package exec gives access to running containers: commands of users, probes and hooks, the main process, and ports.
//
//	Exec, ExecSync, Attach --hijacked connection--> streams;   Dial --network of the container--> net.Conn
package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/util/wait"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// Config describes the engine's host.
type Config struct {
	OS string // linux or windows
	// Kill kills a process and its descendants, if the process belongs to that container; nil: KillTree.
	Kill func(pid int, containerID string)
}

// Executor gives access to one engine's running containers. All methods may be called concurrently.
type Executor struct {
	engine     *engine.Client
	os         string
	kill       func(pid int, containerID string)
	unfinished unfinished
}

var _ pod.Executor = (*Executor)(nil)

// New returns an Executor of e.
func New(e *engine.Client, cfg Config) *Executor {
	if cfg.Kill == nil {
		cfg.Kill = KillTree
	}
	return &Executor{engine: e, os: cfg.OS, kill: cfg.Kill}
}

// Exec runs cmd in a running container. in, out and errOut may be nil; with tty, errOut gets nothing. When in ends, the command sees the end of its
// input and its output continues. Exec blocks until the command has ended and its output is delivered, ctx ends or out can no longer be written. It
// returns nil for exit code 0, and a k8s.io/client-go/util/exec.CodeExitError for any other. The caller closes in when Exec has returned, and resize
// at any time. When ctx ends, the command loses its streams but continues to run.
func (e *Executor) Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	s := engine.Streams{In: in, TTY: tty, Resize: resize}
	if out != nil {
		s.Out = out
	}
	if errOut != nil && !tty {
		s.Err = errOut
	}
	inspect, err := e.exec(ctx, containerID, cmd, "", s, func(string) {})
	if err != nil {
		return err
	}
	if inspect.ExitCode != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", inspect.ExitCode), Code: inspect.ExitCode}
	}
	return nil
}

// ErrNoAnswer says that a command's deadline has passed and that it is unknown whether the command ran.
var ErrNoAnswer = errors.New("the engine does not answer")

// ExecSync runs argv and keeps at most limit bytes of its output, both streams interleaved. When ctx ends, err is ctx's, and the command is killed if
// the engine runs in the same Linux as the agent and reports its process id (API 1.25). Otherwise, as on Windows, it runs until it or its container
// exits. If ctx ends and the engine does not answer, err is ErrNoAnswer.
//
// It first waits for the same command of the same container, if ctx of that ended before it did, and may use up ctx so.
func (e *Executor) ExecSync(ctx context.Context, containerID string, argv []string, limit int) (exitCode int, output []byte, err error) {
	if id, ok := e.unfinished.await(ctx, keyOf(containerID, argv)); !ok {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && !e.answers(ctx, id) {
			return -1, nil, fmt.Errorf("cannot run %q in container %s: %w", argv, engine.ShortID(containerID), ErrNoAnswer)
		}
		return -1, nil, ctx.Err()
	}
	kept := &head{limit: limit}
	var execID string
	inspect, err := e.exec(ctx, containerID, argv, commandMark, engine.Streams{Out: kept, Err: kept}, func(id string) { execID = id })
	switch {
	case ctx.Err() != nil:
		answers := false
		if execID != "" {
			answers = e.endUnfinished(ctx, containerID, argv, execID)
		}
		if !answers && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return -1, kept.data, fmt.Errorf("cannot run %q in container %s: %w", argv, engine.ShortID(containerID), ErrNoAnswer)
		}
		return -1, kept.data, ctx.Err()
	case err != nil:
		return -1, kept.data, err
	case inspect.Pid == 0 && inspect.ExitCode != 0 && e.tellsPid():
		return -1, kept.data, fmt.Errorf("cannot run %q in container %s: %s", argv, engine.ShortID(containerID), notStarted(kept.data))
	}
	return inspect.ExitCode, kept.data, nil
}

// tellsPid says whether the engine reports the process id of a started command: since API 1.25. Without it, a command that could not be started looks
// like one that failed.
func (e *Executor) tellsPid() bool {
	version := e.engine.Version()
	return version == "" || !versions.LessThan(version, "1.25")
}

// notStarted returns what the engine wrote to the output of a command that it could not start.
func notStarted(output []byte) string {
	if text := strings.TrimSpace(string(output)); text != "" {
		return text
	}
	return "the engine could not start it"
}

// exec runs one command until it ends. It calls created with the engine's id of the command before the start. mark is commandMark or "".
func (e *Executor) exec(ctx context.Context, containerID string, cmd []string, mark string, s engine.Streams, created func(id string)) (container.ExecInspect, error) {
	if len(cmd) == 0 {
		return container.ExecInspect{}, errors.New("cannot run a command: it is empty")
	}
	what := "run a command in container " + engine.ShortID(containerID)
	options := container.ExecOptions{
		Cmd: cmd, Tty: s.TTY, AttachStdin: s.In != nil, AttachStdout: true, AttachStderr: !s.TTY, DetachKeys: mark,
	}
	var id string
	err := e.engine.Call(ctx, what, func(ctx context.Context, c *client.Client) error {
		answer, err := c.ContainerExecCreate(ctx, containerID, options)
		id = answer.ID
		return err
	})
	if err != nil {
		return container.ExecInspect{}, err
	}
	created(id)
	err = engine.Session{
		What: what,
		Open: func(ctx context.Context, c *client.Client) (types.HijackedResponse, error) {
			return c.ContainerExecAttach(ctx, id, container.ExecAttachOptions{Tty: s.TTY})
		},
		Resize: func(ctx context.Context, height, width uint) error {
			return e.engine.Call(ctx, "resize a terminal", func(ctx context.Context, c *client.Client) error {
				return c.ContainerExecResize(ctx, id, container.ResizeOptions{Height: height, Width: width})
			})
		},
	}.Run(ctx, e.engine, s)
	if err != nil {
		return container.ExecInspect{}, err
	}
	return e.execEnded(ctx, id, what)
}

// execEndPatience is how long execEnded polls.
const execEndPatience = 10 * time.Second

// execEndPauses are the polling intervals.
func execEndPauses() wait.Backoff {
	return wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Cap: 500 * time.Millisecond, Steps: math.MaxInt32}
}

// execEnded returns the exit code. The engine closes the output a moment before it records the end. The only event for that comes with those of every
// probe, so this polls.
func (e *Executor) execEnded(ctx context.Context, id, what string) (container.ExecInspect, error) {
	inner, _, cancel := e.engine.Within(ctx, execEndPatience)
	defer cancel()
	for pauses := execEndPauses(); ; {
		var answer container.ExecInspect
		err := e.engine.Call(inner, what, func(ctx context.Context, c *client.Client) (err error) {
			answer, err = c.ContainerExecInspect(ctx, id)
			return err
		})
		if err == nil && !answer.Running {
			return answer, nil
		}
		if ctx.Err() != nil {
			return answer, fmt.Errorf("cannot %s: %w", what, ctx.Err())
		}
		if err != nil {
			return answer, err
		}
		select {
		case <-e.engine.Clock().After(pauses.Step()):
		case <-inner.Done():
			return answer, fmt.Errorf("cannot %s: its output ended, but it has not exited after %v", what, execEndPatience)
		}
	}
}

// Attach connects to the main process of a running container, as Exec does to a command. It returns nil when that process ends. Engines accept an
// attach to a stopped container and then never answer, so Attach checks its state before and after.
func (e *Executor) Attach(ctx context.Context, containerID string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	s := engine.Streams{In: in, TTY: tty, Resize: resize}
	if out != nil {
		s.Out = out
	}
	if errOut != nil && !tty {
		s.Err = errOut
	}
	what := "attach to container " + engine.ShortID(containerID)
	running := func(ctx context.Context) error {
		answer, err := e.engine.Inspect(ctx, containerID)
		if err == nil && !answer.State.Running {
			err = errors.New("it does not run")
		}
		return err
	}
	if err := running(ctx); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	return engine.Session{
		What: what,
		Open: func(ctx context.Context, c *client.Client) (types.HijackedResponse, error) {
			conn, err := c.ContainerAttach(ctx, containerID, container.AttachOptions{
				Stream: true, Stdin: in != nil, Stdout: out != nil || tty, Stderr: errOut != nil && !tty,
			})
			if err != nil {
				return conn, err
			}
			if err := running(ctx); err != nil {
				conn.Close()
				return conn, err
			}
			return conn, nil
		},
		Resize: func(ctx context.Context, height, width uint) error {
			return e.engine.Call(ctx, "resize a terminal", func(ctx context.Context, c *client.Client) error {
				return c.ContainerResize(ctx, containerID, container.ResizeOptions{Height: height, Width: width})
			})
		},
	}.Run(ctx, e.engine, s)
}
