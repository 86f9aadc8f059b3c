// Package wake wakes goroutines: the sender never blocks, and signals sent before the receiver looks count as one. All packages use it for that.
//
//	news -> Signal.Send    -> <-signal in the goroutine's select
//	news -> Broadcast.Send -> <-broadcast.Next() in each goroutine that waits
//
// Neither carries data: the receiver compares everything it is responsible for. For single objects, use client-go's workqueue, which has keys.
package wake

import "sync"

// Signal wakes its one receiver. Create it with New; a nil Signal never fires and discards signals.
type Signal chan struct{}

// New returns a Signal that has not been sent.
func New() Signal { return make(Signal, 1) }

// Send wakes the receiver, immediately or at its next receive. It never blocks, and any goroutine may call it.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Broadcast wakes all goroutines that wait for news. The zero value is ready for use; any goroutine may use it.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil: no goroutine waits
}

// Next returns a channel that the next Send closes. Take it before you look at what the news are about, so that a change in between wakes you.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send wakes all goroutines that have called Next since the last Send. It never blocks.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}
