package kubeproxy

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// sharing lets two independent users share a host's service addresses: the host has the union of both sets.
type sharing struct {
	relay.Addresses
	mu      sync.Mutex
	whole   []netip.Addr
	relayed relay.Local
	added   []netip.Addr // since ForRules.Set last returned them
}

// set gives the host the union of both sets. The caller holds the lock.
func (s *sharing) set(ctx context.Context) (answers bool, err error) {
	all := s.relayed
	all.Addresses = slices.Concat(s.whole, s.relayed.Addresses)
	slices.SortFunc(all.Addresses, netip.Addr.Compare)
	all.Addresses = slices.Compact(all.Addresses)
	all.Added = func(addr netip.Addr) { s.added = append(s.added, addr) }
	return s.Addresses.Set(ctx, all)
}

// ForRules sets service addresses for a back end that knows only whole addresses.
type ForRules struct{ *sharing }

// Set gives the host the addresses in want (sorted) and those of the other user. added are the addresses that the host
// gained since the last call.
func (r ForRules) Set(ctx context.Context, want []netip.Addr) (added []netip.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole = want
	_, err = r.set(ctx)
	added, r.added = r.added, nil
	return added, err
}

// forRelay sets the same service addresses for a Relay.
type forRelay struct{ *sharing }

// Set implements relay.Addresses.
func (r forRelay) Set(ctx context.Context, want relay.Local) (answers bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relayed = want
	return r.set(ctx)
}

// Share returns Addresses for two independent users: the host has the union of both sets.
func Share(addresses relay.Addresses) (ForRules, relay.Addresses) {
	all := &sharing{Addresses: addresses}
	return ForRules{all}, forRelay{all}
}
