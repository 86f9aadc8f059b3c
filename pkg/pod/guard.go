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

// Error omits the stack, because users may see the text.
func (e *PanicError) Error() string { return fmt.Sprintf("internal error: %v", e.Value) }

// Guarded calls f and returns a panic of f as a *PanicError: a fault in one pod's work must not stop the other pods.
func Guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return f()
}
