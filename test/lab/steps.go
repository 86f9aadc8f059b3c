package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// LogError is an error with the log that tells more.
type LogError struct {
	Err error
	Log string // path
}

func (e *LogError) Error() string { return e.Err.Error() }
func (e *LogError) Unwrap() error { return e.Err }

// StepError is an error that has been printed with its step.
type StepError struct{ Err error }

func (e *StepError) Error() string { return e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// Steps prints what is being done and how long it takes.
type Steps struct {
	out   io.Writer
	start time.Time

	mu    sync.Mutex
	notes []string
}

func newSteps(out io.Writer) *Steps { return &Steps{out: out, start: time.Now()} }

// Run prints one line for do: the time since the start, the name, ok or what failed, and the time it took when over 2 s. Of a
// failure with a log the log's last lines follow. The error it returns is a StepError.
func (s *Steps) Run(ctx context.Context, name string, do func(context.Context) error) error {
	begin := time.Now()
	fmt.Fprintf(s.out, "[%6.1fs] %s ... ", begin.Sub(s.start).Seconds(), name)
	err := do(ctx)
	took := time.Since(begin)
	result := "ok"
	if err != nil {
		result = "FAILED: " + err.Error()
	}
	if took > 2*time.Second {
		result += fmt.Sprintf(" (%.1f s)", took.Seconds())
	}
	fmt.Fprintln(s.out, result)
	s.mu.Lock()
	for _, note := range s.notes {
		fmt.Fprintf(s.out, "%10s %s\n", "", note)
	}
	s.notes = nil
	s.mu.Unlock()
	if logged := new(LogError); errors.As(err, &logged) {
		fmt.Fprintf(s.out, "last lines of the log:\n%s\nthe whole log: %s\n", tail(logged.Log, 20), logged.Log)
	}
	if err != nil {
		return &StepError{err}
	}
	return nil
}

// note adds a line below the running step.
func (s *Steps) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// tail returns the last n lines of a file, indented.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "  " + err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return "  " + strings.Join(lines, "\n  ")
}
