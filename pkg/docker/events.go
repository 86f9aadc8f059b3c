package docker

import (
	"context"
	"sync"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// changes are the events that can alter an Observed. exec events, which probes cause all the time, are not among them.
var changes = []events.Action{
	events.ActionCreate, events.ActionStart, events.ActionDie, events.ActionOOM, events.ActionDestroy, events.ActionPause, events.ActionUnPause,
	events.ActionUpdate, events.ActionConnect, events.ActionDisconnect,
}

// Changes delivers the UIDs of pods whose containers changed, each once however often it changed since it was last taken, so that a
// slow reader holds up nothing. After each (re)connection to the engine it delivers "". The channel is closed when ctx ends. Observe is
// cheaper while a Changes runs.
func (e *Engine) Changes(ctx context.Context) <-chan types.UID {
	pending := &pending{ready: make(chan struct{}, 1), has: map[types.UID]bool{}}
	out := make(chan types.UID)
	go func() {
		defer close(out)
		for {
			uid, ok := pending.next(ctx)
			if !ok {
				return
			}
			select {
			case out <- uid:
			case <-ctx.Done():
				return
			}
		}
	}()
	containers, up := e.ofContainers(pending)
	go containers.Follow(ctx, e.Client)
	go func() {
		select {
		case <-up:
			e.Follow(ctx)
		case <-ctx.Done():
		}
	}()
	return out
}

// ofContainers negotiates the version anew each time: after a restart it may be another engine. up is closed when events come. Those of networks,
// which tell of containers that are taken off one, have no labels to choose by; in one stream with the others they come in their order.
func (e *Engine) ofContainers(pending *pending) (s engine.Stream, up <-chan struct{}) {
	first := make(chan struct{})
	told := sync.OnceFunc(func() { close(first) })
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("type", string(events.NetworkEventType)))
	for _, action := range changes {
		args.Add("event", string(action))
	}
	return engine.Stream{
		Client: e.Negotiate,
		Filter: args,
		Up:     func() { e.cache.stream(1); pending.add(""); told() },
		Down:   func() { e.cache.stream(-1) },
		Each: func(message events.Message) {
			if message.Type == events.NetworkEventType {
				if uid, ok := e.cache.rewired(message.Actor.Attributes["container"], message.Action == events.ActionConnect); ok {
					pending.add(uid)
				}
			} else if o, err := e.node().Own([]string{message.Actor.Attributes["name"]}, message.Actor.Attributes); err == nil && e.noted(o.UID, message) {
				pending.add(o.UID)
			}
		},
	}, first
}

// noted takes in what an event tells of a container of the pod uid, and says whether who follows that pod should look.
func (e *Engine) noted(uid types.UID, message events.Message) bool {
	id := message.Actor.ID
	switch message.Action {
	case events.ActionCreate:
		e.cache.see(uid, id)
		return false // nothing runs yet, and mostly it was made by who follows
	case events.ActionDestroy:
		e.cache.gone(id)
	case events.ActionStart:
		e.cache.toldStarted(id)
	default:
		e.cache.drop(id)
	}
	return true
}

// pending is a set of UIDs that remembers the order in which they came. "" stands for all of them.
type pending struct {
	mu    sync.Mutex
	queue []types.UID
	has   map[types.UID]bool
	ready chan struct{} // holds a token while the queue is not empty
}

func (p *pending) add(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has[uid] || p.has[""] {
		return
	}
	if uid == "" {
		clear(p.has)
		p.queue = nil
	}
	p.has[uid] = true
	p.queue = append(p.queue, uid)
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// next takes the oldest; false when ctx ended first.
func (p *pending) next(ctx context.Context) (types.UID, bool) {
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			uid := p.queue[0]
			p.queue = p.queue[1:]
			delete(p.has, uid)
			p.mu.Unlock()
			return uid, true
		}
		p.mu.Unlock()
		select {
		case <-p.ready:
		case <-ctx.Done():
			return "", false
		}
	}
}
