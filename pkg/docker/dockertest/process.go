package dockertest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/pkg/stdcopy"
	"k8s.io/utils/clock"
)

// Program runs in a container: a function that acts as an executable and returns its exit code.
type Program func(p *Process) int

// Process is the environment of a Program.
type Process struct {
	Args, Env      []string
	Dir            string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Signals        <-chan string   // TERM and the like, as sent by stop and kill
	Killed         <-chan struct{} // closed by SIGKILL: return, since output is discarded
	Resized        <-chan [2]uint  // height and width of the terminal
}

// Pause waits for TERM or INT and exits then.
func Pause(p *Process) int {
	for {
		select {
		case signal := <-p.Signals:
			if signal == "TERM" || signal == "INT" {
				return 0
			}
		case <-p.Killed:
			return 137
		}
	}
}

// entry is a piece of output, at most a line.
type entry struct {
	stream stdcopy.StdType
	at     time.Time
	text   []byte
}

// process is a running Program and its output.
type process struct {
	clock   clock.Clock
	stdin   *io.PipeWriter
	signals chan string
	killed  chan struct{}
	kill    func()
	resized chan [2]uint

	mu      sync.Mutex
	entries []entry
	done    bool
	changed chan struct{} // closed and replaced at each write and at the end
}

// launch starts program. It calls exited with the exit code, unless the program was killed before.
func launch(c clock.Clock, program Program, p Process, withStdin bool, exited func(code int)) *process {
	in, stdin := io.Pipe()
	if !withStdin {
		stdin.Close()
	}
	run := &process{
		clock: c, stdin: stdin, signals: make(chan string, 16), killed: make(chan struct{}), resized: make(chan [2]uint, 16), changed: make(chan struct{}),
	}
	run.kill = sync.OnceFunc(func() {
		close(run.killed)
		in.CloseWithError(io.ErrClosedPipe)
	})
	p.Stdin, p.Signals, p.Killed, p.Resized = in, run.signals, run.killed, run.resized
	p.Stdout, p.Stderr = output{run, stdcopy.Stdout}, output{run, stdcopy.Stderr}
	if p.TTY {
		p.Stderr = p.Stdout
	}
	go func() {
		code := program(&p)
		in.CloseWithError(io.ErrClosedPipe)
		exited(code)
	}()
	return run
}

type output struct {
	to     *process
	stream stdcopy.StdType
}

func (o output) Write(p []byte) (int, error) {
	o.to.mu.Lock()
	defer o.to.mu.Unlock()
	if o.to.done {
		return 0, io.ErrClosedPipe
	}
	for line := range strings.SplitAfterSeq(string(p), "\n") {
		if line != "" {
			o.to.entries = append(o.to.entries, entry{o.stream, o.to.clock.Now(), []byte(line)})
		}
	}
	o.to.tell()
	return len(p), nil
}

func (p *process) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// finish ends the output.
func (p *process) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.done = true
		p.tell()
	}
}

// from returns the entries after the first at, and a channel to wait for more.
func (p *process) from(at int) (more []entry, done bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.entries[at:], p.done, p.changed
}

// signal delivers a signal to the program; KILL ends it immediately.
func (p *process) signal(name string) {
	if name == "KILL" {
		p.kill()
		return
	}
	select {
	case p.signals <- name:
	default:
	}
}

// wanted are the options of output delivery.
type wanted struct {
	stdout, stderr, raw, timestamps, follow bool
	since                                   time.Time
}

// deliver writes entries from at on until the process ends, ctx does, or down is closed.
func (p *process) deliver(ctx context.Context, w io.Writer, flush func(), at int, want wanted, down <-chan struct{}) error {
	for {
		more, done, changed := p.from(at)
		at += len(more)
		for _, entry := range more {
			if entry.at.Before(want.since) || entry.stream == stdcopy.Stdout && !want.stdout || entry.stream == stdcopy.Stderr && !want.stderr {
				continue
			}
			text := entry.text
			if want.timestamps {
				text = fmt.Appendf(nil, "%s %s", entry.at.UTC().Format("2006-01-02T15:04:05.000000000Z07:00"), text)
			}
			to := w
			if !want.raw {
				to = stdcopy.NewStdWriter(w, entry.stream)
			}
			if _, err := to.Write(text); err != nil {
				return err
			}
		}
		flush()
		if done || !want.follow {
			return nil
		}
		select {
		case <-changed:
		case <-down:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
