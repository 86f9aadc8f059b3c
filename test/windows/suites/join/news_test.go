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

// news tells those who wait that something may have changed.
type news struct {
	mu      sync.Mutex
	changed chan struct{} // closed and renewed at each change
}

// ofAPI reports changes of Nodes, Leases, Pods, Services, ServiceAccounts and Events.
var ofAPI = &news{changed: make(chan struct{})}

// Copies of what ofAPI reports. Tests that wait for something there read these, some thousand times.
var (
	watched informersv1.Interface // its listers
	leases  coordinationv1.LeaseLister
)

// next is closed at the next change.
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

// follow has n report what the API server's watches deliver, until ctx ends.
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
	// settle gathers events that come together: one look serves them all.
	settle = 20 * time.Millisecond
	// unheard is the poll interval for what no event reports, such as the engine's containers.
	unheard = time.Second
	// silent is that for what has no events at all: pages that a program begins to serve.
	silent = 100 * time.Millisecond
)

// until asks until ok is nil, after each event of the API server and each call of a simulator, and returns how long it took.
func (m *member) until(patience time.Duration, what string, ok func(context.Context) error) time.Duration {
	m.Helper()
	return m.repeat(patience, unheard, what, ok, func() (api, calls <-chan struct{}) { return ofAPI.next(), m.world.Log.Changed() })
}

// served is until for pages, of which nothing tells.
func (m *member) served(patience time.Duration, what string, ok func(context.Context) error) time.Duration {
	m.Helper()
	return m.repeat(patience, silent, what, ok, func() (api, calls <-chan struct{}) { return nil, nil })
}

// repeat asks until ok is nil: whenever one of the channels is closed, which are asked for before each time, and every so often.
func (m *member) repeat(patience, every time.Duration, what string, ok func(context.Context) error, events func() (api, calls <-chan struct{})) time.Duration {
	m.Helper()
	begin := time.Now()
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
		if last == nil || !strings.Contains(err.Error(), "context deadline") { // which says less than what was before it
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
