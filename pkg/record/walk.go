package record

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Step is a part of a recording.
type Step struct {
	Name string // one or two words
	What string // its effect on the host, in a sentence without its full stop; "": none
	// Do runs the step.
	Do func(context.Context) error
	// Undo reverts it; nil: nothing to revert. It is called whenever Do was started. Missing objects are not an error.
	Undo func(context.Context) error
	// Needs are the steps that Do requires.
	Needs []string
}

// undoTime is the time limit of each Undo: an engine stops a container in half a minute.
const undoTime = 2 * time.Minute

// Walk prints what steps will do, runs them in order and reverts them in reverse order, also after an error and when ctx ends. The error joins those
// of the steps, each with its name; the recording contains them as well.
func (r *Recorder) Walk(ctx context.Context, out io.Writer, steps []Step) error {
	fmt.Fprintln(out, "This changes the host as follows, and undoes everything at the end:")
	for _, s := range steps {
		if s.What != "" {
			fmt.Fprintf(out, "  %s: %s\n", s.Name, s.What)
		}
	}
	w := walk{r: r, out: out}
	begun := 0
	for _, s := range steps {
		if ctx.Err() != nil {
			w.fail(s.Name, ctx.Err())
			break
		}
		begun++
		w.do(ctx, s)
	}
	for _, s := range slices.Backward(steps[:begun]) {
		w.undo(context.WithoutCancel(ctx), s)
	}
	r.Describe(func(h *Header) { h.Failed = w.failed })
	return errors.Join(w.errs...)
}

// walk is one Walk.
type walk struct {
	r      *Recorder
	out    io.Writer
	broken []string // names of steps that failed
	failed []string
	errs   []error
}

func (w *walk) fail(name string, err error) {
	w.broken = append(w.broken, name)
	w.failed = append(w.failed, name+": "+strings.Join(strings.Fields(err.Error()), " "))
	w.errs = append(w.errs, fmt.Errorf("%s: %w", name, err))
}

func (w *walk) do(ctx context.Context, s Step) {
	for _, need := range s.Needs {
		if slices.Contains(w.broken, need) {
			w.broken = append(w.broken, s.Name)
			fmt.Fprintf(w.out, "%s: left out, because %q failed\n", s.Name, need)
			return
		}
	}
	w.r.Step(s.Name)
	begin := time.Now()
	if err := s.Do(ctx); err != nil {
		w.fail(s.Name, err)
		fmt.Fprintf(w.out, "%s: failed, which is recorded as well: %v\n", s.Name, err)
		return
	}
	fmt.Fprintf(w.out, "%s: done in %s\n", s.Name, time.Since(begin).Round(100*time.Millisecond))
}

func (w *walk) undo(ctx context.Context, s Step) {
	if s.Undo == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	name := "undo " + s.Name
	w.r.Step(name)
	if err := s.Undo(ctx); err != nil {
		w.fail(name, err)
		fmt.Fprintf(w.out, "%s: failed: %v\n", name, err)
	}
}
