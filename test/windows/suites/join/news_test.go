package join

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	informersv1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/client-go/tools/cache"
)

// news notifies waiters that something may have changed.
type news struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
}

// ofAPI reports changes of Nodes, Leases, Pods, Services, ServiceAccounts and Events.
var ofAPI = &news{changed: make(chan struct{})}

// Copies of what ofAPI reports. Tests poll these instead of the API server, some thousand times.
var (
	watched informersv1.Interface // its listers
	leases  coordinationv1.LeaseLister
)

// next returns a channel that is closed at the next change.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.changed)
	n.changed = make(chan struct{})
}

// follow reports the events of the API server's watches to n until ctx ends.
func (n *news) follow(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	watched, leases = factory.Core().V1(), factory.Coordination().V1().Leases().Lister()
	for _, one := range []cache.SharedIndexInformer{watched.Nodes().Informer(), watched.Pods().Informer(), watched.Services().Informer(),
		watched.ServiceAccounts().Informer(), watched.Events().Informer(), factory.Coordination().V1().Leases().Informer()} {
		if _, err := one.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.tell() }, UpdateFunc: func(any, any) { n.tell() },
			DeleteFunc: func(any) { n.tell() }}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	for _, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return errors.New("cannot watch the API server")
		}
	}
	return nil
}

const (
	// settle collects events that arrive together, so that they cause one check.
	settle = 20 * time.Millisecond
	// unheard is the poll interval for changes without events, such as those of the engine's containers.
	unheard = time.Second
	// silent is the poll interval for what has no events at all: pages that a program begins to serve.
	silent = 100 * time.Millisecond
	// leastPatience applies to every wait: under Wine, on a machine five times slower than ours, a second's work takes long.
	leastPatience = 3 * time.Minute
)

// until calls ok until it returns nil, after each event of the API server and each call of a simulator. It returns how long
// that took.
func (m *member) until(patience time.Duration, what string, ok func(context.Context) error) time.Duration {
	m.Helper()
	return m.repeat(patience, unheard, what, ok, func() (api, calls <-chan struct{}) { return ofAPI.next(), m.world.Log.Changed() })
}

// served is until for pages, which have no events.
func (m *member) served(patience time.Duration, what string, ok func(context.Context) error) time.Duration {
	m.Helper()
	return m.repeat(patience, silent, what, ok, func() (api, calls <-chan struct{}) { return nil, nil })
}

// repeat calls ok until it returns nil: at the given interval, and whenever one of the channels closes. It gets the channels
// before each call, so that it misses no change. It ends the test after patience, or leastPatience if that is longer.
func (m *member) repeat(patience, every time.Duration, what string, ok func(context.Context) error, events func() (api, calls <-chan struct{})) time.Duration {
	m.Helper()
	begin := time.Now()
	patience = max(patience, leastPatience)
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		api, calls := events()
		err := ok(ctx)
		if err == nil {
			return time.Since(begin)
		}
		if last == nil || !strings.Contains(err.Error(), "context deadline") { // such an error says less than the previous one
			last = err
		}
		select {
		case <-api:
		case <-calls:
		case <-tick.C:
			continue
		case <-ctx.Done():
			m.Fatalf("%s: not after %s: %v", what, patience, last)
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
		}
	}
}
