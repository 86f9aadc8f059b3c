package kubeproxy

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// sharing is a host's service addresses with two users who do not know each other: the host holds what either wants.
type sharing struct {
	relay.Addresses
	mu      sync.Mutex
	whole   []netip.Addr
	relayed relay.Local
}

// set has the host hold both. The lock is held.
func (s *sharing) set(ctx context.Context) (answers bool, err error) {
	all := s.relayed
	all.Addresses = slices.Concat(s.whole, s.relayed.Addresses)
	slices.SortFunc(all.Addresses, netip.Addr.Compare)
	all.Addresses = slices.Compact(all.Addresses)
	return s.Addresses.Set(ctx, all)
}

// ForRules are service addresses for a back end that knows whole addresses only.
type ForRules struct{ *sharing }

// Set has the host hold want, sorted, and what the other user wants.
func (r ForRules) Set(ctx context.Context, want []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole = want
	_, err := r.set(ctx)
	return err
}

// forRelay are the same service addresses for a Relay.
type forRelay struct{ *sharing }

// Set implements relay.Addresses.
func (r forRelay) Set(ctx context.Context, want relay.Local) (answers bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relayed = want
	return r.set(ctx)
}

// Share returns the Addresses of two users who do not know each other: the host holds what either wants.
func Share(addresses relay.Addresses) (ForRules, relay.Addresses) {
	all := &sharing{Addresses: addresses}
	return ForRules{all}, forRelay{all}
}
