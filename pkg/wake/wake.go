// Package wake is the one way here to wake a goroutine: the sender never blocks, and signals sent before the receiver looks count as one.
//
//	news -> Signal.Send -> <-signal in the goroutine's select
//
// It carries no data: the receiver compares everything it is responsible for. Where single objects are to be looked at, use client-go's
// workqueue, which knows their keys.
package wake

// Signal wakes its one receiver. Make it with New; a nil Signal never fires and loses what is sent.
type Signal chan struct{}

// New makes a Signal that has not been sent.
func New() Signal { return make(Signal, 1) }

// Send wakes the receiver, now or when it next receives. It never blocks, and any goroutine may call it.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
