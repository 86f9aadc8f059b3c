package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// LogError is an error with the path of the log that explains it.
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

// Steps prints the running step and its duration.
type Steps struct {
	out      io.Writer
	terminal bool
	start    time.Time

	mu     sync.Mutex
	header string // of the running step
	notes  []string
	tasks  []*task // in progress
	below  int     // lines printed below the header
}

func newSteps(out io.Writer) *Steps {
	s := &Steps{out: out, start: time.Now()}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Run runs do and prints one line: the time since the start, the name, ok or the error, and the duration if over 2 s.
// Below it, Run shows the programs that do builds: on a terminal updated each second, elsewhere one line per program
// every 30 s. If the error has a log, the log's last 20 lines follow. Run returns a StepError.
func (s *Steps) Run(ctx context.Context, name string, do func(context.Context) error) error {
	begin := time.Now()
	s.mu.Lock()
	s.header, s.below = fmt.Sprintf("[%6.1fs] %s ... ", begin.Sub(s.start).Seconds(), name), 0
	fmt.Fprint(s.out, s.header)
	s.mu.Unlock()
	err := s.watch(func() error { return do(ctx) })
	took := time.Since(begin)
	result := "ok"
	if err != nil {
		result = "FAILED: " + err.Error()
	}
	if took > 2*time.Second {
		result += fmt.Sprintf(" (%.1f s)", took.Seconds())
	}
	s.mu.Lock()
	if s.below > 0 {
		s.rewind()
		fmt.Fprint(s.out, s.header)
	}
	fmt.Fprintln(s.out, result)
	for _, note := range s.notes {
		fmt.Fprintf(s.out, "%10s %s\n", "", note)
	}
	s.notes = nil
	s.mu.Unlock()
	if logged := new(LogError); errors.As(err, &logged) {
		fmt.Fprintf(s.out, "end of the log:\n%s\nthe whole log: %s\n", tail(logged.Log, 20), logged.Log)
	}
	if err != nil {
		return &StepError{err}
	}
	return nil
}

// watch prints the progress of tasks while do runs.
func (s *Steps) watch(do func() error) error {
	every := 30 * time.Second
	if s.terminal {
		every = time.Second
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	done := make(chan error, 1)
	go func() { done <- do() }()
	for {
		select {
		case err := <-done:
			return err
		case <-ticker.C:
			s.progress()
		}
	}
}

// progress prints a line per task.
func (s *Steps) progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) == 0 && (s.below == 0 || !s.terminal) {
		return
	}
	if s.terminal && s.below > 0 {
		s.rewind()
		fmt.Fprint(s.out, s.header)
	}
	if s.terminal || s.below == 0 {
		fmt.Fprintln(s.out)
	}
	now := ""
	if !s.terminal {
		now = fmt.Sprintf("[%6.1fs] ", time.Since(s.start).Seconds())
	}
	for _, t := range s.tasks {
		fmt.Fprintf(s.out, "%10s %.100s\n", "", now+t.String())
	}
	s.below = len(s.tasks) + 1
}

// rewind moves a terminal's cursor to the header and clears everything below it.
func (s *Steps) rewind() {
	if s.terminal {
		fmt.Fprintf(s.out, "\r\x1b[%dA\x1b[J", s.below)
	}
}

// show adds tasks to the running step until the returned function is called.
func (s *Steps) show(tasks []*task) (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = append(s.tasks, tasks...)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tasks = slices.DeleteFunc(s.tasks, func(t *task) bool { return slices.Contains(tasks, t) })
	}
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
