// Package calls is the log that all simulators of Windows write: which call came, and what it was answered. Tests assert on it, since
// much of what Wine fakes itself succeeds silently.
//
//	program under Wine --> shim --> simulator --> Log --> test
package calls

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Call is one call of a Windows API and its answer.
type Call struct {
	Service  string   // which simulator: hns, iphelper, netsh, pdh; sim: the way to them
	Function string   // the function as Windows names it
	Args     []string // as text
	Result   uint32   // HRESULT, Win32 error or exit code; 0: done
	Detail   string   // what was wrong, in the simulator's words
	Unknown  bool     // the simulator does not know what it was asked for: the test must fail
}

// String is the call on one line.
func (c Call) String() string {
	text := c.Service + " " + c.Function
	if len(c.Args) > 0 {
		text += " " + strings.Join(c.Args, " ")
	}
	if c.Result != 0 {
		text += fmt.Sprintf(" -> %#x", c.Result)
	}
	if c.Detail != "" {
		text += " (" + c.Detail + ")"
	}
	return text
}

// Log gathers calls. Its zero value is ready, and it is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	calls   []Call
	changed chan struct{} // closed and renewed at each call
}

// Add appends a call.
func (l *Log) Add(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Calls returns the calls so far. With names only those of these functions.
func (l *Log) Calls(names ...string) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(names) == 0 {
		return slices.Clone(l.calls)
	}
	var out []Call
	for _, c := range l.calls {
		if slices.Contains(names, c.Function) {
			out = append(out, c)
		}
	}
	return out
}

// Unknown returns the calls for which there is no simulation.
func (l *Log) Unknown() []Call {
	return slices.DeleteFunc(l.Calls(), func(c Call) bool { return !c.Unknown })
}

// Reset forgets the calls so far.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = nil
}

// String is one call per line.
func (l *Log) String() string {
	var b strings.Builder
	for _, c := range l.Calls() {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// Changed returns a channel that is closed at the next call.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Wait blocks until ok holds, asking again after each call.
func (l *Log) Wait(ctx context.Context, ok func() bool) error {
	for {
		changed := l.Changed()
		if ok() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for calls any longer: %w; the calls so far:\n%s", ctx.Err(), l)
		}
	}
}
