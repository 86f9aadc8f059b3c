package worker

import (
	"context"
	"errors"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// inbox passes work to the goroutine that owns some state. Any goroutine may call put at any time, and it does not block.
type inbox struct {
	filled wake.Signal

	mu    sync.Mutex
	items []func()
}

func newInbox() *inbox { return &inbox{filled: wake.New()} }

// put makes the owner call f.
func (b *inbox) put(f func()) {
	b.mu.Lock()
	b.items = append(b.items, f)
	b.mu.Unlock()
	b.filled.Send()
}

// drain calls everything that was put. Only the owner may call it.
func (b *inbox) drain() {
	b.mu.Lock()
	items := b.items
	b.items = nil
	b.mu.Unlock()
	for _, f := range items {
		f()
	}
}

// crew is a set of goroutines that their owner waits for.
type crew struct{ sync.WaitGroup }

// do calls f in a new goroutine, and then done with its error in the same goroutine.
func (c *crew) do(ctx context.Context, f func(ctx context.Context) error, done func(error)) {
	c.Go(func() { done(guarded(func() error { return f(ctx) })) })
}

// guarded calls f. It logs a panic of f with its stack and returns it as an error.
func guarded(f func() error) error {
	err := pod.Guarded(f)
	if caught := new(pod.PanicError); errors.As(err, &caught) {
		klog.ErrorS(err, "Recovered from a panic", "stack", string(caught.Stack))
	}
	return err
}
