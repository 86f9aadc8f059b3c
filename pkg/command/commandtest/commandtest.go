// Package commandtest is a test double of a host's programs: a command.Runner that runs functions instead of processes.
package commandtest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/winkube/winkube/pkg/command"
)

// Program simulates one program in a Runner: it returns its output and changes the state of its closure.
type Program func(stdin []byte, args []string) (stdout []byte, err error)

// Runner is a command.Runner: a host with only the installed programs. It keeps a transcript.
type Runner struct {
	mu       sync.Mutex
	programs map[string]Program
	scripts  map[string][]Answer
	log      strings.Builder
}

// Answer is one scripted answer.
type Answer struct {
	Stdout string
	Err    error // as from Exit
}

// New returns a host without programs.
func New() *Runner {
	return &Runner{programs: map[string]Program{}, scripts: map[string][]Answer{}}
}

// Exit is the error of a program that wrote stderr and exited with code.
func Exit(code int, stderr string) error {
	return &command.ExitError{Code: code, State: fmt.Sprintf("exit status %d", code), Output: stderr}
}

// Install installs name; a nil p removes it. An *ExitError from p is wrapped as by the real one.
func (r *Runner) Install(name string, p Program) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p == nil {
		delete(r.programs, name)
		return
	}
	r.programs[name] = p
}

// Script queues answers to one exact command line ("iptables-save -t nat"). They are returned in order and take precedence over an installed Program;
// the last one is repeated.
func (r *Runner) Script(line string, answers ...Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts[line] = append(r.scripts[line], answers...)
}

// Run implements command.Runner. Calls are served one at a time.
func (r *Runner) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return nil, failed(name, args, context.Cause(ctx))
	}
	l := line(name, args)
	fmt.Fprintf(&r.log, "$ %s\n", l)
	for _, s := range strings.Split(strings.TrimSuffix(string(stdin), "\n"), "\n") {
		if len(stdin) > 0 {
			fmt.Fprintf(&r.log, "< %s\n", s)
		}
	}
	stdout, err := r.answer(l, stdin, name, args)
	if err != nil {
		fmt.Fprintf(&r.log, "! %v\n", err)
		return stdout, failed(name, args, err)
	}
	return stdout, nil
}

func (r *Runner) answer(l string, stdin []byte, name string, args []string) ([]byte, error) {
	if queue := r.scripts[l]; len(queue) > 0 {
		if len(queue) > 1 {
			r.scripts[l] = queue[1:]
		}
		return []byte(queue[0].Stdout), queue[0].Err
	}
	p, ok := r.programs[name]
	if !ok {
		return nil, command.ErrNotFound
	}
	return p(stdin, args)
}

// Transcript returns the runs since the last call, one line each ("$ argv", "< stdin", "! error").
func (r *Runner) Transcript() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.log.String()
	r.log.Reset()
	return s
}

// failed wraps an error as the real Runner does.
func failed(name string, args []string, err error) error {
	return fmt.Errorf("cannot run %q: %w", line(name, args), err)
}

func line(name string, args []string) string {
	return strings.Join(append([]string{name}, args...), " ")
}
