package worker

import (
	"context"
	"errors"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

// inbox hands work to the goroutine that owns something. Any goroutine may put, at any time, and never waits.
type inbox struct {
	filled wake.Signal

	mu    sync.Mutex
	items []func()
}

func newInbox() *inbox { return &inbox{filled: wake.New()} }

// put has the owner call f.
func (b *inbox) put(f func()) {
	b.mu.Lock()
	b.items = append(b.items, f)
	b.mu.Unlock()
	b.filled.Send()
}

// drain calls everything that was put. Only the owner calls it.
func (b *inbox) drain() {
	b.mu.Lock()
	items := b.items
	b.items = nil
	b.mu.Unlock()
	for _, f := range items {
		f()
	}
}

// crew is a set of goroutines whose owner waits for them.
type crew struct{ sync.WaitGroup }

// do calls f in a goroutine, and then done with its error, in the same one.
func (c *crew) do(ctx context.Context, f func(ctx context.Context) error, done func(error)) {
	c.Go(func() { done(guarded(func() error { return f(ctx) })) })
}

// guarded calls f, and logs a panic of f with its stack: it comes back as an error.
func guarded(f func() error) error {
	err := pod.Guarded(f)
	if caught := new(pod.PanicError); errors.As(err, &caught) {
		klog.ErrorS(err, "Recovered from a panic", "stack", string(caught.Stack))
	}
	return err
}
