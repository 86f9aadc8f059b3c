// Package wake wakes goroutines: the sender never blocks, and signals sent before the receiver looks count as one. All packages use it for that.
//
//	news -> Signal.Send -> <-signal in the goroutine's select
//
// A Signal carries no data: the receiver compares everything it is responsible for. For single objects, use client-go's workqueue, which has keys.
package wake

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
