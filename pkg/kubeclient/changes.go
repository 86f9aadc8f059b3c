package kubeclient

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// changes is a queue of UIDs with a channel as its output. Adding never blocks, and a UID that is added twice before its delivery is
// delivered once.
type changes struct {
	queue *workqueue.Typed[types.UID]
	out   chan types.UID
}

func newChanges() *changes {
	return &changes{queue: workqueue.NewTyped[types.UID](), out: make(chan types.UID)}
}

// run delivers until ctx ends. Call it once.
func (c *changes) run(ctx context.Context) {
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	for {
		uid, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		select {
		case <-ctx.Done():
		case c.out <- uid:
		}
		c.queue.Done(uid)
	}
}
