package worker

import (
	"context"
	"errors"
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// inbox hands work to the goroutine that owns something. Any goroutine may put, at any time, and never waits.
type inbox struct {
	wake chan struct{}

	mu    sync.Mutex
	items []func()
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put has the owner call f.
func (b *inbox) put(f func()) {
	b.mu.Lock()
	b.items = append(b.items, f)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
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

// crew is a set of goroutines that end with a context.
type crew struct{ sync.WaitGroup }

// do calls f in a goroutine; what f panics with comes back as an error, for one pod must not end the others.
func (c *crew) do(ctx context.Context, f func(ctx context.Context) error, done func(error)) {
	c.Add(1)
	go func() {
		defer c.Done()
		done(guarded(func() error { return f(ctx) }))
	}()
}

// guarded calls f, and logs a panic of f with its stack: it comes back as an error.
func guarded(f func() error) error {
	err := pod.Guarded(f)
	if caught := new(pod.PanicError); errors.As(err, &caught) {
		klog.ErrorS(err, "Recovered from a panic", "stack", string(caught.Stack))
	}
	return err
}
