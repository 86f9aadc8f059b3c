package pod

import (
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"
)

// Guarded calls f. A panic of f is logged with its stack and comes back as an error: what goes wrong with one pod must not end the others.
func Guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			klog.ErrorS(nil, "Recovered from a panic", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	return f()
}
