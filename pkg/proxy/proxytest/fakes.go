package proxytest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// Backend is a back end whose host is a map. It enforces the contract of Sync: changed must name what differs from the
// last Table, unless it is nil. It is safe for concurrent use.
type Backend struct {
	mu     sync.Mutex
	routes map[string]proxy.Route
	calls  []string
	broken map[proxy.ServiceName]error
	fails  error
	synced chan struct{}
}

// NewBackend returns a Backend that serves nothing.
func NewBackend() *Backend {
	return &Backend{routes: map[string]proxy.Route{}, broken: map[proxy.ServiceName]error{}, synced: make(chan struct{}, 1000)}
}

// Break makes the Routes of a Service fail; nil repairs them.
func (b *Backend) Break(name proxy.ServiceName, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.broken, name); err != nil {
		b.broken[name] = err
	}
}

// Fail makes Sync fail as a whole; nil repairs it.
func (b *Backend) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = err
}

// Synced receives an element after each Sync.
func (b *Backend) Synced() <-chan struct{} { return b.synced }

// Sync implements proxy.Backend.
func (b *Backend) Sync(_ context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		select {
		case b.synced <- struct{}{}:
		default:
		}
	}()
	names := "everything"
	if changed != nil {
		names = fmt.Sprint(changed)
	}
	b.calls = append(b.calls, names)
	if b.fails != nil {
		return b.fails
	}
	asked := func(name proxy.ServiceName) bool { return changed == nil || slices.Contains(changed, name) }
	var errs []error
	next := map[string]proxy.Route{}
	for _, r := range want.Routes {
		key := fmt.Sprint(r.Service, r.Kind, r.Protocol, r.Front)
		have, ok := b.routes[key]
		if (!ok || !have.Equal(&r)) && !asked(r.Service.ServiceName) && b.broken[r.Service.ServiceName] == nil {
			panic(fmt.Sprintf("%s changed but is not among %v", r.Service, changed))
		}
		if err := b.broken[r.Service.ServiceName]; err != nil {
			if asked(r.Service.ServiceName) {
				errs = append(errs, &proxy.RouteError{Route: r, Err: err})
			}
			continue
		}
		next[key] = r
	}
	for key, r := range b.routes {
		if _, ok := next[key]; !ok && !asked(r.Service.ServiceName) && b.broken[r.Service.ServiceName] == nil {
			panic(fmt.Sprintf("%s is gone but is not among %v", r.Service, changed))
		}
	}
	b.routes = next
	return errors.Join(errs...)
}

// Route returns the Route that is served at a front.
func (b *Backend) Route(protocol v1.Protocol, front netip.AddrPort) (proxy.Route, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.routes {
		if r.Protocol == protocol && r.Front == front {
			return r, true
		}
	}
	return proxy.Route{}, false
}

// Calls lists the changed argument of each Sync.
func (b *Backend) Calls() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// String prints what is served, as a Table.
func (b *Backend) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, r := range b.routes {
		table := proxy.Table{Routes: []proxy.Route{r}}
		lines = append(lines, strings.Join(strings.Fields(strings.SplitN(table.String(), "\n", 2)[1]), " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
