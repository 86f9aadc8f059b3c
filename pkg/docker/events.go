package docker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// How long Changes waits before it connects again; doubled after each failure.
const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 5 * time.Second
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
	go e.reconnect(ctx, func() (bool, error) { return e.watch(ctx, containers) })
	go func() {
		select {
		case <-up:
			e.reconnect(ctx, func() (bool, error) { return e.watch(ctx, e.ofImages()) })
		case <-ctx.Done():
		}
	}()
	return out
}

// reconnect has watch called again and again until ctx ends.
func (e *Engine) reconnect(ctx context.Context, watch func() (connected bool, err error)) {
	wait := reconnectMin
	for {
		connected, err := watch()
		if ctx.Err() != nil {
			return
		}
		if connected {
			wait = reconnectMin
		}
		klog.V(2).InfoS("Docker's event stream ended; connecting again", "host", e.host, "after", wait, "reason", err)
		select {
		case <-e.clock.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(2*wait, reconnectMax)
	}
}

// stream is one kind of events: which they are, what happens when they begin and end to come, and with each.
type stream struct {
	client   func(context.Context) (*client.Client, error)
	filter   filters.Args
	up, down func()
	each     func(events.Message)
}

// ofContainers negotiates the version anew each time: after a restart it may be another engine. up is closed when events come. Those of networks,
// which tell of containers that are taken off one, have no labels to choose by; in one stream with the others they come in their order.
func (e *Engine) ofContainers(pending *pending) (s stream, up <-chan struct{}) {
	first := make(chan struct{})
	told := sync.OnceFunc(func() { close(first) })
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("type", string(events.NetworkEventType)))
	for _, action := range changes {
		args.Add("event", string(action))
	}
	return stream{
		client: e.negotiate,
		filter: args,
		up:     func() { e.cache.stream(1); pending.add(""); told() },
		down:   func() { e.cache.stream(-1) },
		each: func(message events.Message) {
			if message.Type == events.NetworkEventType {
				if uid, ok := e.cache.rewired(message.Actor.Attributes["container"], message.Action == events.ActionConnect); ok {
					pending.add(uid)
				}
			} else if o, err := e.own([]string{message.Actor.Attributes["name"]}, message.Actor.Attributes); err == nil && e.noted(o.uid, message) {
				pending.add(o.uid)
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

// ofImages are all events of images: they are rare, and their names differ from engine to engine.
func (e *Engine) ofImages() stream {
	return stream{
		client: e.api,
		filter: filters.NewArgs(filters.Arg("type", string(events.ImageEventType))),
		up:     func() { e.images.follow(true) },
		down:   func() { e.images.follow(false) },
		each:   func(events.Message) { e.images.change() },
	}
}

// watch reads one event stream to its end.
func (e *Engine) watch(ctx context.Context, s stream) (connected bool, err error) {
	inner, stop, cancel := e.within(ctx, e.cfg.CallTimeout)
	defer cancel()
	c, err := s.client(inner)
	if err != nil {
		return false, e.explain(ctx, inner, "connect to the engine", err)
	}
	messages, errs := c.Events(inner, events.ListOptions{Filters: s.filter}) // returns when the engine has answered
	stop()
	select {
	case err := <-errs:
		return false, e.explain(ctx, inner, "watch the engine's events", err)
	default:
	}
	s.up()
	defer s.down()
	for {
		select {
		case message := <-messages:
			s.each(message)
		case err := <-errs:
			if err == nil {
				err = errors.New("closed by the engine")
			}
			return true, err
		}
	}
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
