package pod

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic that Guarded caught.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked, for the log
}

// Error leaves the stack out: the text may be shown to users.
func (e *PanicError) Error() string { return fmt.Sprintf("internal error: %v", e.Value) }

// Guarded calls f. A panic of f comes back as a *PanicError: what goes wrong with one pod must not end the others.
func Guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return f()
}
