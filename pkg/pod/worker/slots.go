package worker

import (
	"context"
	"sync"
	"time"
)

// slots limits how many sandboxes the engine starts at a time. Containers need no slot, so the first pods of a burst are ready while the last ones
// wait. Without a limit all of them are ready at its end.
type slots chan struct{}

// slotTime is how long a start keeps its slot. One that takes longer goes on, but no longer keeps others waiting.
const slotTime = 10 * time.Second

// take waits for a slot, first come, first served. done gives it back and must be called. An error is that of ctx.
func (s slots) take(ctx context.Context) (done func(), err error) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	giveBack := sync.OnceFunc(func() { <-s })
	late := time.AfterFunc(slotTime, giveBack)
	return func() {
		late.Stop()
		giveBack()
	}, nil
}
