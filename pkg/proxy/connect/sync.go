package connect

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
)

// route brings one front to a Route that Serves.
func (b *Balancer) route(r *proxy.Route) []error {
	key := keyOf(r)
	old := b.entries[key]
	if have, ok := b.routes[key]; ok && have.Equal(r) {
		return nil
	}
	next := entryOf(r, b.id(old), old)
	fits := b.fits(old, next)
	if !fits {
		next = nil
	}
	errs := b.set(key, next)
	b.owner[key] = r.Service.ServiceName // also for a refused front
	if !fits {
		b.left[key] = true
	}
	if b.entries[key] == next && next != nil {
		b.routes[key] = *r // a copy, because the Table changes in place
	}
	return errs
}

// id returns a front's number, never 0. It is random, so that what the programs stored for another front does not match
// it.
func (b *Balancer) id(old *Entry) uint32 {
	if old != nil {
		return old.ID
	}
	for {
		if id := rand.Uint32(); id != 0 && !b.byID[id] {
			return id
		}
	}
}

func (b *Balancer) fits(old, next *Entry) bool {
	fronts, endpoints := len(b.entries)+1, b.endpoints+len(next.Members)
	if old != nil {
		fronts, endpoints = fronts-1, endpoints-len(old.Members)
	}
	return fronts <= b.limits.Fronts && endpoints <= b.limits.Endpoints
}

// set brings one front to next; nil: the relay serves it. If the kernel accepts only a part, set removes the front, and
// the relay serves it until the next full comparison tries again.
func (b *Balancer) set(key Key, next *Entry) (errs []error) {
	old := b.entries[key]
	delete(b.routes, key)
	delete(b.refused, key)
	for _, op := range diff(old, next) {
		err := b.kernel.Do(op)
		if err == nil {
			continue
		}
		if next != nil {
			b.refused[key] = fmt.Sprintf("%s: %v", op.Kind, err)
			errs, next = b.withdraw(key, old, next), nil
			break
		}
		b.known = false // so the next Sync reads the maps
		errs = append(errs, fmt.Errorf("cannot change the BPF maps of Services: %s: %w", op, err))
	}
	if lostUDP(old, next) {
		b.flows.Send()
	}
	if old != nil {
		b.endpoints -= len(old.Members)
	}
	delete(b.left, key)
	if next == nil {
		if old != nil {
			delete(b.byID, old.ID)
		}
		delete(b.entries, key)
		delete(b.owner, key)
		return errs
	}
	b.entries[key], b.byID[next.ID] = next, true
	b.endpoints += len(next.Members)
	return errs
}

// withdraw removes a front that is between old and next.
func (b *Balancer) withdraw(key Key, old, next *Entry) (errs []error) {
	for _, e := range []*Entry{next, old} {
		for _, op := range diff(e, nil) {
			if err := b.kernel.Do(op); err != nil {
				b.known = false // so the next Sync reads the maps
				errs = append(errs, fmt.Errorf("cannot change the BPF maps of Services: %s: %w", op, err))
			}
		}
	}
	return errs
}

// lostUDP reports whether a UDP endpoint was removed.
func lostUDP(old, next *Entry) bool {
	if old == nil || old.Protocol != protoUDP {
		return false
	}
	return slices.ContainsFunc(old.Members, func(m Member) bool { return next == nil || !next.leads(m.Endpoint) })
}

// tellLeft logs once that the Table is larger than the maps.
func (b *Balancer) tellLeft() {
	if len(b.left) == 0 {
		b.told.left = false
	}
	if len(b.left) == 0 || b.told.left {
		return
	}
	b.told.left = true
	klog.InfoS("Relaying some Services: the BPF maps are full", "fronts", len(b.left), "such as", some(b.left), "most fronts", b.limits.Fronts, "most endpoints", b.limits.Endpoints)
}

// tellRefused logs once for each reason why the kernel did not accept fronts.
func (b *Balancer) tellRefused() {
	if len(b.refused) == 0 {
		b.told.refused = nil
		return
	}
	by := map[string]map[Key]bool{}
	for key, reason := range b.refused {
		if by[reason] == nil {
			by[reason] = map[Key]bool{}
		}
		by[reason][key] = true
	}
	told := map[string]bool{}
	for reason, keys := range by {
		told[reason] = true
		if !b.told.refused[reason] {
			klog.InfoS("Relaying some Services: the kernel rejected their entries in the BPF maps", "fronts", len(keys), "such as", some(keys), "reason", reason)
		}
	}
	b.told.refused = told
}

// some returns up to five fronts.
func some[V any](of map[Key]V) []string {
	names := make([]string, 0, 5)
	for key := range of {
		if names = append(names, key.String()); len(names) == cap(names) {
			break
		}
	}
	slices.Sort(names)
	return names
}

// remove removes everything from the host.
func (b *Balancer) remove() error {
	b.forget()
	b.kernel.Close()
	b.open, b.reason = false, ""
	return b.kernel.Remove()
}

// endFlows ends UDP flows to removed endpoints, after each removal and after each full comparison, because an endpoint
// may have been removed while no proxy ran.
func (b *Balancer) endFlows() {
	for {
		select {
		case <-b.stop:
			return
		case <-b.flows:
		}
		if leads := b.flowsLead(); leads != nil {
			ended, err := b.kernel.EndFlows(leads)
			b.metrics.ended.Add(float64(ended))
			if err != nil {
				klog.ErrorS(err, "Cannot end all UDP flows to endpoints that are gone; their clients may have to open new sockets")
			}
		}
	}
}

// flowsLead returns a function that reports whether an endpoint is still a front's; nil: unknown. The function may run
// during Sync.
func (b *Balancer) flowsLead() func(Key, Endpoint) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open || !b.known {
		return nil
	}
	udp := map[Key]*Entry{} // an Entry is immutable
	for key, e := range b.entries {
		if key.Protocol == protoUDP {
			udp[key] = e
		}
	}
	return func(key Key, endpoint Endpoint) bool {
		e := udp[key]
		return e != nil && e.leads(endpoint)
	}
}
