package kubeproxy

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// shared is one of two users of a host's service addresses.
type shared struct {
	relay.Addresses
	all *sharing
	at  int
}

type sharing struct {
	mu    sync.Mutex
	wants [2][]netip.Addr
}

// Share returns the Addresses of two users who do not know each other: the host holds what either wants.
func Share(addresses relay.Addresses) (first, second relay.Addresses) {
	all := &sharing{}
	return &shared{addresses, all, 0}, &shared{addresses, all, 1}
}

// Set implements relay.Addresses.
func (s *shared) Set(ctx context.Context, want []netip.Addr) error {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.wants[s.at] = want
	all := slices.Concat(s.all.wants[0], s.all.wants[1])
	slices.SortFunc(all, netip.Addr.Compare)
	return s.Addresses.Set(ctx, slices.Compact(all))
}
