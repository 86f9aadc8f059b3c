package kubeclient

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// changes is a set of UIDs that is emptied through a channel: adding never blocks, and a UID added twice before it was taken comes once.
type changes struct {
	mu    sync.Mutex
	set   map[types.UID]struct{}
	order []types.UID
	wake  chan struct{}
	out   chan types.UID
}

func newChanges() *changes {
	return &changes{set: map[types.UID]struct{}{}, wake: make(chan struct{}, 1), out: make(chan types.UID)}
}

func (c *changes) add(uid types.UID) {
	c.mu.Lock()
	if _, ok := c.set[uid]; !ok {
		c.set[uid] = struct{}{}
		c.order = append(c.order, uid)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *changes) take() (types.UID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.order) == 0 {
		return "", false
	}
	uid := c.order[0]
	c.order = c.order[1:]
	delete(c.set, uid)
	return uid, true
}

// run delivers until ctx ends.
func (c *changes) run(ctx context.Context) {
	for {
		uid, ok := c.take()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case c.out <- uid:
		}
	}
}
