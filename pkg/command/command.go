// Package command runs programs of the host. It is the only package of winkube that starts processes directly.
//
//	Run(ctx, stdin, "iptables-save", "-t", "nat") -> its output, or an error with the command line and the program's output
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrNotFound says that the host has no such program.
var ErrNotFound = errors.New("program not found")

// ExitError says that a program ran and exited with a code other than 0.
type ExitError struct {
	Code   int    // -1: killed by a signal
	State  string // "exit status 1", "signal: killed"
	Output string // end of stderr, or of stdout if that is empty; at most maxShown bytes
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Output == "" {
		return e.State
	}
	return e.State + ": " + e.Output
}

// Runner runs programs of the host.
type Runner interface {
	// Run runs name (found as New says) with args, passes it stdin (nil: empty) and returns its stdout. It blocks until the program has exited; when
	// ctx ends the program is killed and the error wraps ctx's. Errors have the form `cannot run "iptables-save -t nat": exit status 1: <stderr>` and
	// wrap ErrNotFound or an *ExitError where that is the cause. args must not contain secrets. Safe for concurrent use.
	Run(ctx context.Context, stdin []byte, name string, args ...string) (stdout []byte, err error)
}

const (
	maxShown = 2048
	// A grandchild may hold our pipes open after the program has exited; we wait this long for it.
	waitDelay = 2 * time.Second
)

type runner struct {
	dirs  []string
	env   []string
	quiet bool // stdout may contain secrets
	// mark is a NAME=value of env that identifies descendants of a program; "": only the program itself is killed.
	mark  string
	mu    sync.Mutex
	paths map[string]string
}

// New returns the Runner of this host. A name with a path is run unchanged. Other names are looked up once: on Windows only in the system directory,
// so that nothing in the working directory or PATH can replace a system tool; on Linux in PATH and then in the usual sbin and bin directories, which
// a service's PATH often lacks. Programs run in the C locale, so that their output can be parsed.
func New() Runner {
	return NewWith(nil)
}

// NewWith returns New's Runner, whose programs also see env, NAME=value each; it overrides this process's environment.
func NewWith(env []string) Runner {
	return &runner{dirs: searchDirs(), env: append(cLocale(os.Environ()), env...), paths: map[string]string{}}
}

// NewPrivate returns a Runner whose programs see only env and whose stdout may contain secrets: errors do not include it.
func NewPrivate(env []string) Runner {
	return &runner{dirs: searchDirs(), env: env, quiet: true, paths: map[string]string{}}
}

// NewFamily returns a Runner whose programs are killed together with all their descendants when ctx ends. They see only env and mark, a unique
// NAME=value. On Windows they also end with this process; on Linux EndFamily kills those of an earlier one.
func NewFamily(env []string, mark string) Runner {
	return &runner{dirs: searchDirs(), env: append(slices.Clip(env), mark), mark: mark, paths: map[string]string{}}
}

// Look finds the program at an absolute path, which on Windows may lack its .exe. The error wraps ErrNotFound if there is no executable.
func Look(path string) (string, error) {
	found, err := exec.LookPath(path)
	if err != nil {
		return "", fmt.Errorf("%w: %v", ErrNotFound, err)
	}
	return found, nil
}

// cLocale returns env with the C locale and without other language variables.
func cLocale(env []string) []string {
	out := make([]string, 0, len(env)+2)
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if name == "LANG" || name == "LANGUAGE" || strings.HasPrefix(name, "LC_") {
			continue
		}
		out = append(out, kv)
	}
	return append(out, "LC_ALL=C", "LANG=C")
}

func (r *runner) look(name string) (string, error) {
	if filepath.Base(name) != name {
		if !filepath.IsAbs(name) {
			return "", fmt.Errorf("%q is a relative path; want an absolute one or a bare name", name)
		}
		return name, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.paths[name]; ok {
		return p, nil
	}
	for _, dir := range r.dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		// For an absolute name, LookPath checks that it is executable and, on Windows, adds .exe.
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			r.paths[name] = p
			return p, nil
		}
	}
	return "", fmt.Errorf("%w in %s", ErrNotFound, strings.Join(r.dirs, string(filepath.ListSeparator)))
}

// Run implements Runner.
func (r *runner) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	path, err := r.look(name)
	if err != nil {
		return nil, failed(name, args, err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = r.env
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = waitDelay
	cmd.SysProcAttr = attributes()
	err = r.wait(cmd)
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return stdout.Bytes(), failed(name, args, fmt.Errorf("%w: %v", context.Cause(ctx), err))
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		visible := stdout.Bytes()
		if r.quiet {
			visible = nil
		}
		err = &ExitError{Code: exit.ExitCode(), State: exit.String(), Output: shown(stderr.Bytes(), visible)}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, exec.ErrNotFound): // the second for an absolute path on Windows
		err = fmt.Errorf("%w: %v", ErrNotFound, err)
	}
	return stdout.Bytes(), failed(name, args, err)
}

// wait runs cmd until it exits.
func (r *runner) wait(cmd *exec.Cmd) error {
	if r.mark == "" {
		return cmd.Run()
	}
	all, err := newFamily(r.mark)
	if err != nil {
		return err
	}
	defer all.close()
	cmd.Cancel = func() error { return errors.Join(cmd.Process.Kill(), all.end()) }
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := all.adopt(cmd.Process); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return cmd.Wait()
}

// shown is the part of a program's output that an error contains.
func shown(stderr, stdout []byte) string {
	b := bytes.TrimSpace(stderr)
	if len(b) == 0 {
		b = bytes.TrimSpace(stdout) // netsh prints errors on stdout
	}
	if len(b) > maxShown {
		b = append([]byte("... "), b[len(b)-maxShown:]...)
	}
	return string(b)
}

func failed(name string, args []string, err error) error {
	return fmt.Errorf("cannot run %q: %w", line(name, args), err)
}

// line formats argv for people.
func line(name string, args []string) string {
	return strings.Join(append([]string{name}, args...), " ")
}
