package worker

import (
	"context"
	"sync"
	"time"
)

// turns limits how many sandboxes the engine starts at a time. Containers need no turn, so that the first pods of a burst are ready while the last
// ones wait; without turns all of them are ready at its end.
type turns chan struct{}

// turnTime is how long a start keeps its turn. One that takes longer goes on, but no longer keeps others waiting.
const turnTime = 10 * time.Second

// take waits for a turn, first come, first served. done gives it back and must be called. An error is that of ctx.
func (t turns) take(ctx context.Context) (done func(), err error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	back := sync.OnceFunc(func() { <-t })
	late := time.AfterFunc(turnTime, back)
	return func() {
		late.Stop()
		back()
	}, nil
}
