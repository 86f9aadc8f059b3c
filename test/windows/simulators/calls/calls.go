// Package calls is the call log of all Windows simulators: each call and its answer. Tests assert on it, because many calls that Wine
// fakes succeed silently.
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
	Service  string   // the simulator: hns, iphelper, netsh or pdh; sim for the transport
	Function string   // Windows' name of the function
	Args     []string // as text
	Result   uint32   // HRESULT, Win32 error or exit code; 0 is success
	Detail   string   // the simulator's description of the error
	Unknown  bool     // the call is not simulated: the test must fail
}

// String returns the call as one line.
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

// Log records calls. Its zero value is ready to use. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	calls   []Call
	changed chan struct{} // closed and replaced at each call
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

// Calls returns the calls so far, only those of the named functions if names are given.
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

// Unknown returns the calls that are not simulated.
func (l *Log) Unknown() []Call {
	return slices.DeleteFunc(l.Calls(), func(c Call) bool { return !c.Unknown })
}

// Reset discards the recorded calls.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = nil
}

// String returns one line per call.
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

// Wait blocks until ok returns true. It checks again after each call.
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
