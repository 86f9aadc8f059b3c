package containers

import (
	"context"
	"sync"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// changes are the events that can alter an Observed or the engine's Info. They exclude exec events, which probes cause all the time.
var changes = []events.Action{
	events.ActionCreate, events.ActionStart, events.ActionDie, events.ActionOOM, events.ActionDestroy, events.ActionPause, events.ActionUnPause,
	events.ActionUpdate, events.ActionConnect, events.ActionDisconnect, events.ActionReload,
}

// Changes delivers the UIDs of pods whose containers changed. Several changes before the next receive count as one, so that a slow reader blocks
// nothing. After each (re)connection to the engine it delivers "", which means all pods. The channel is closed after ctx has ended and the watch has
// stopped. Observe is cheaper while a Changes runs.
func (ob *Observer) Changes(ctx context.Context) <-chan types.UID {
	queue, out := workqueue.NewTyped[types.UID](), make(chan types.UID)
	containers, up := ob.ofContainers(queue)
	var streams sync.WaitGroup
	streams.Go(func() { containers.Follow(ctx, ob.engine) })
	streams.Go(func() {
		select {
		case <-up:
			ob.images.Follow(ctx)
		case <-ctx.Done():
		}
	})
	streams.Go(func() {
		<-ctx.Done()
		queue.ShutDown()
	})
	go func() { // the reader waits for it: the closed channel signals its end
		defer close(out)
		defer streams.Wait()
		deliver(ctx, queue, out)
	}()
	return out
}

// deliver forwards queued UIDs until the queue is shut down, which happens when ctx ends.
func deliver(ctx context.Context, queue workqueue.TypedInterface[types.UID], out chan<- types.UID) {
	for {
		uid, over := queue.Get()
		if over {
			return
		}
		queue.Done(uid) // later changes queue it again
		select {
		case out <- uid:
		case <-ctx.Done():
			return
		}
	}
}

// ofContainers negotiates the version at each connection: after a restart the engine may be a different version. up is closed once events arrive.
// Network events, which report disconnected containers, have no labels to filter by; one stream for all kinds keeps their order.
func (ob *Observer) ofContainers(queue workqueue.TypedInterface[types.UID]) (s engine.Stream, up <-chan struct{}) {
	first := make(chan struct{})
	connected := sync.OnceFunc(func() { close(first) })
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("type", string(events.NetworkEventType)),
		filters.Arg("type", string(events.DaemonEventType)))
	for _, action := range changes {
		args.Add("event", string(action))
	}
	return engine.Stream{
		Client: ob.engine.Negotiate,
		Filter: args,
		Up:     func() { ob.engine.Doubt(); ob.cache.stream(1); queue.Add(""); connected() },
		Down:   func() { ob.cache.stream(-1) },
		Each: func(message events.Message) {
			switch message.Type {
			case events.DaemonEventType: // its configuration was reloaded, and may name other runtimes
				ob.engine.Doubt()
			case events.NetworkEventType:
				if uid, ok := ob.cache.rewired(message.Actor.Attributes["container"], message.Action == events.ActionConnect); ok {
					queue.Add(uid)
				}
			default:
				if o, err := ob.node.Own([]string{message.Actor.Attributes["name"]}, message.Actor.Attributes); err == nil && ob.noted(o.UID, message) {
					queue.Add(o.UID)
				}
			}
		},
	}, first
}

// noted updates the cache from an event of a container of the pod uid, and reports whether the pod should be observed.
func (ob *Observer) noted(uid types.UID, message events.Message) bool {
	id := message.Actor.ID
	switch message.Action {
	case events.ActionCreate:
		ob.cache.see(uid, id)
		return false // nothing runs yet, and usually this agent created it
	case events.ActionDestroy:
		ob.cache.gone(id)
	case events.ActionStart:
		ob.cache.toldStarted(id)
	default:
		ob.cache.drop(id)
	}
	return true
}
