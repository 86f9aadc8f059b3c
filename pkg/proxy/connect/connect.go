// Package connect chooses the endpoint of a Service for clients of this host when they call connect or sendmsg. BPF
// programs at hooks of a cgroup (v2) replace the Service's address in that call with an endpoint's. No packet passes
// through this program, and none is changed.
//
//	Table --Entries, diff--> Ops --> maps of BPF <-- programs <-- connect(10.96.0.10:80) of a pod
//
// It works in addition to the relay, which has every front too and serves the rest: clients on other hosts, node ports,
// external addresses, and everything if the kernel does not support this. Pure code has no build tag; the kernel is
// behind an interface.
package connect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/wake"
)

// Kernel is the part of the host that a Balancer changes.
type Kernel interface {
	// Open attaches our programs and takes over the maps of a previous proxy. Programs of that proxy stay attached
	// until Attach. On failure it returns the reason and leaves nothing behind. Idempotent.
	Open() error
	// Attach replaces the previous proxy's programs once the maps are filled. Idempotent.
	Attach() error
	// Refuses reports whether fronts without endpoints can be refused. Call it only after Open has succeeded.
	Refuses() bool
	// Check attaches again what was detached, and returns its names. After an error, the next Open may succeed.
	Check() (again []string, err error)
	// Read returns the contents of the maps.
	Read() (*Contents, error)
	// Do applies one Op. Deleting a missing entry is not an error.
	Do(Op) error
	// EndFlows closes the connected UDP sockets of clients whose endpoint is gone.
	EndFlows(leads func(Key, Endpoint) bool) (ended int, err error)
	// Decisions returns how many decisions the programs made.
	Decisions() (tcp, udp, refused uint64)
	// Uses returns how much of the maps that clients fill is used; nil: unknown.
	Uses() []Use
	// Remove removes all programs and maps from the host.
	Remove() error
	// Close releases this process' resources. Programs and maps stay.
	Close()
}

// Use is the use of a limit. For limits per client: of the one with the most.
type Use struct {
	Of          string
	Used, Limit int
}

// readEach is the number of full comparisons that trust what was written before the maps are read again. Only a program
// with all privileges could change them, and reading tens of thousands of entries takes a while.
const readEach = 20

// Limits are the capacities of the maps; 0: MaxFronts and MaxEndpoints.
type Limits struct{ Fronts, Endpoints int }

// Balancer implements proxy.Backend.
type Balancer struct {
	kernel Kernel
	limits Limits

	mu        sync.Mutex
	open      bool
	known     bool   // entries equal the contents of the maps
	unread    int    // full comparisons since the maps were read
	reason    string // why it is not open, as logged last
	entries   map[Key]*Entry
	routes    map[Key]proxy.Route // the Routes of entries
	byID      map[uint32]bool
	owner     map[Key]proxy.ServiceName
	byService map[proxy.ServiceName][]Key
	endpoints int            // number of members of all entries
	left      map[Key]bool   // fronts without room in the maps
	refused   map[Key]string // why the kernel did not accept a front
	told      told

	flows   wake.Signal
	stop    chan struct{}
	running sync.WaitGroup
	metrics *metrics
}

// told is what was logged about fronts that are relayed.
type told struct {
	left    bool
	refused map[string]bool // reasons
}

// New returns a Balancer that has not changed the host.
func New(kernel Kernel, limits Limits) *Balancer {
	if limits.Fronts == 0 {
		limits.Fronts = MaxFronts
	}
	if limits.Endpoints == 0 {
		limits.Endpoints = MaxEndpoints
	}
	b := &Balancer{kernel: kernel, limits: limits, flows: wake.New(), stop: make(chan struct{})}
	b.forget()
	b.metrics = newMetrics(b)
	b.running.Go(b.endFlows)
	return b
}

func (b *Balancer) forget() {
	b.entries, b.routes, b.byID = map[Key]*Entry{}, map[Key]proxy.Route{}, map[uint32]bool{}
	b.owner, b.byService = map[Key]proxy.ServiceName{}, map[proxy.ServiceName][]Key{}
	b.left, b.refused, b.endpoints, b.known = map[Key]bool{}, map[Key]string{}, 0, false
}

// Collectors returns the Balancer's metrics.
func (b *Balancer) Collectors() []prometheus.Collector { return []prometheus.Collector{b.metrics} }

// Close stops this process' part. The programs continue with the contents of the maps.
func (b *Balancer) Close() {
	close(b.stop)
	b.running.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kernel.Close()
	b.open = false
}

// Sync implements proxy.Backend. It fails only if a front may still lead to an endpoint that it no longer has; the
// relay serves everything else.
func (b *Balancer) Sync(_ context.Context, want *proxy.Table, changed []proxy.ServiceName) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(want.Routes) == 0 {
		return b.remove()
	}
	if !b.ready(changed == nil) {
		return nil
	}
	var errs []error
	switch {
	case changed != nil && b.known:
		for _, name := range changed {
			errs = append(errs, b.service(name, want.Of(name))...)
		}
	case b.known && b.unread < readEach:
		b.unread++
		errs = b.all(want)
	default:
		b.unread = 0
		if errs = b.compare(want); b.known {
			if err := b.kernel.Attach(); err != nil {
				return b.cannot(err)
			}
		}
	}
	b.tellLeft()
	b.tellRefused()
	return errors.Join(errs...)
}

// ready opens the kernel, or checks that it is still open. After a failure it tries again at the next full comparison.
func (b *Balancer) ready(whole bool) bool {
	if b.open && whole {
		again, err := b.kernel.Check()
		for _, hook := range again {
			b.metrics.attached.Inc()
			klog.InfoS("Reattached the BPF program for Services: something had detached it. Check what else manages BPF programs on this host", "hook", hook)
		}
		if err != nil {
			b.kernel.Close()
			b.open = false
			b.forget()
		}
	}
	if b.open || b.reason != "" && !whole {
		return b.open
	}
	if err := b.kernel.Open(); err != nil {
		b.tellWhy(err)
		return false
	}
	klog.InfoS("Clients on this host reach Services directly: BPF programs choose an endpoint when they connect. Other clients are relayed", "refuses", b.kernel.Refuses())
	b.open, b.reason = true, ""
	return true
}

// tellWhy logs a reason once.
func (b *Balancer) tellWhy(err error) {
	if text := strings.Join(strings.Fields(err.Error()), " "); text != b.reason {
		klog.InfoS("Relaying all Services: the kernel cannot decide for clients when they connect", "reason", text)
		b.reason = text
	}
}

// cannot leaves everything to the relay.
func (b *Balancer) cannot(err error) error {
	b.forget()
	b.kernel.Close()
	b.open = false
	b.tellWhy(err)
	return b.kernel.Remove()
}

// compare brings all maps to want, whatever they contain.
func (b *Balancer) compare(want *proxy.Table) (errs []error) {
	contents, err := b.kernel.Read()
	if err != nil {
		return []error{fmt.Errorf("cannot read the BPF maps of Services: %w", err)}
	}
	entries, rest := contents.entries()
	for _, op := range rest {
		if err := b.kernel.Do(op); err != nil {
			errs = append(errs, err)
		}
	}
	b.forget()
	b.entries, b.known = entries, true
	for _, e := range entries {
		b.byID[e.ID] = true
		b.endpoints += len(e.Members)
	}
	wanted := make(map[Key]bool, len(want.Routes))
	for i := range want.Routes {
		if r := &want.Routes[i]; Serves(r, b.kernel.Refuses()) {
			wanted[keyOf(r)] = true
		}
	}
	for key := range entries {
		if !wanted[key] {
			errs = append(errs, b.set(key, nil)...)
		}
	}
	for i := range want.Routes {
		if r := &want.Routes[i]; Serves(r, b.kernel.Refuses()) {
			b.byService[r.Service.ServiceName] = append(b.byService[r.Service.ServiceName], keyOf(r))
			errs = append(errs, b.route(r)...)
		}
	}
	b.flows.Send()
	return errs
}

// all brings every front to want.
func (b *Balancer) all(want *proxy.Table) (errs []error) {
	gone := maps.Clone(b.byService)
	for i := range want.Routes {
		delete(gone, want.Routes[i].Service.ServiceName)
	}
	for name := range gone { // first, to make room
		errs = append(errs, b.service(name, nil)...)
	}
	last := proxy.ServiceName{}
	for i := range want.Routes {
		if name := want.Routes[i].Service.ServiceName; name != last {
			errs = append(errs, b.service(name, want.Of(name))...)
			last = name
		}
	}
	b.flows.Send()
	return errs
}

// service brings the fronts of one Service to its Routes. A front that moved to another Service is also handled with
// that one.
func (b *Balancer) service(name proxy.ServiceName, routes []proxy.Route) (errs []error) {
	had := b.byService[name]
	delete(b.byService, name)
	has := map[Key]bool{}
	for i := range routes {
		if r := &routes[i]; Serves(r, b.kernel.Refuses()) {
			key := keyOf(r)
			has[key] = true
			b.byService[name] = append(b.byService[name], key)
			errs = append(errs, b.route(r)...)
		}
	}
	for _, key := range had {
		if !has[key] && b.owner[key] == name {
			errs = append(errs, b.set(key, nil)...)
		}
	}
	return errs
}
