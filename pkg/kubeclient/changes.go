package kubeclient

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// changes is a queue of UIDs that is emptied through a channel: adding never blocks, and a UID added twice before its turn comes once.
type changes struct {
	queue *workqueue.Typed[types.UID]
	out   chan types.UID
}

func newChanges() *changes {
	return &changes{queue: workqueue.NewTyped[types.UID](), out: make(chan types.UID)}
}

// run delivers until ctx ends. It is called once.
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
