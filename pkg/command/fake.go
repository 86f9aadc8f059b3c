package command

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// Program simulates one program in a Fake: it returns its output and changes the state of its closure.
type Program func(stdin []byte, args []string) (stdout []byte, err error)

// Fake is a Runner for tests: a host with only the installed programs. It keeps a transcript.
type Fake struct {
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

// NewFake returns a host without programs.
func NewFake() *Fake {
	return &Fake{programs: map[string]Program{}, scripts: map[string][]Answer{}}
}

// Exit is the error of a program that wrote stderr and exited with code.
func Exit(code int, stderr string) error {
	return &ExitError{Code: code, State: fmt.Sprintf("exit status %d", code), Output: stderr}
}

// Install installs name; a nil p removes it. An *ExitError from p is wrapped as by the real Runner.
func (f *Fake) Install(name string, p Program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p == nil {
		delete(f.programs, name)
		return
	}
	f.programs[name] = p
}

// Script queues answers to one exact command line ("iptables-save -t nat"). They are returned in order and take precedence over an installed Program;
// the last one is repeated.
func (f *Fake) Script(line string, answers ...Answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scripts[line] = append(f.scripts[line], answers...)
}

// Run implements Runner. Calls are served one at a time.
func (f *Fake) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return nil, failed(name, args, context.Cause(ctx))
	}
	l := line(name, args)
	fmt.Fprintf(&f.log, "$ %s\n", l)
	for _, s := range strings.Split(strings.TrimSuffix(string(stdin), "\n"), "\n") {
		if len(stdin) > 0 {
			fmt.Fprintf(&f.log, "< %s\n", s)
		}
	}
	stdout, err := f.answer(l, stdin, name, args)
	if err != nil {
		fmt.Fprintf(&f.log, "! %v\n", err)
		return stdout, failed(name, args, err)
	}
	return stdout, nil
}

func (f *Fake) answer(l string, stdin []byte, name string, args []string) ([]byte, error) {
	if queue := f.scripts[l]; len(queue) > 0 {
		if len(queue) > 1 {
			f.scripts[l] = queue[1:]
		}
		return []byte(queue[0].Stdout), queue[0].Err
	}
	p, ok := f.programs[name]
	if !ok {
		return nil, ErrNotFound
	}
	return p(stdin, args)
}

// Transcript returns the runs since the last call, one line each ("$ argv", "< stdin", "! error").
func (f *Fake) Transcript() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.log.String()
	f.log.Reset()
	return s
}
