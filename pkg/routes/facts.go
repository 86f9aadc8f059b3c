package routes

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/winkube/winkube/pkg/wake"
)

// Facts are what other parts know about the cluster; a Manager checks Nodes against them. Safe for concurrent use.
type Facts struct {
	changed wake.Signal

	mu         sync.Mutex
	services   []netip.Prefix
	apiServers []netip.Addr
}

// NewFacts returns empty Facts.
func NewFacts() *Facts { return &Facts{changed: wake.New()} }

// SetServices sets the ranges of service addresses; none: unknown.
func (f *Facts) SetServices(ranges []netip.Prefix) {
	sorted := slices.SortedFunc(slices.Values(ranges), comparePrefixes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(sorted, f.services) {
		f.services = sorted
		f.changed.Send()
	}
}

// SetAPIServers sets the addresses at which the API server is reached, its Service's among them.
func (f *Facts) SetAPIServers(addrs []netip.Addr) {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare))
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(sorted, f.apiServers) {
		f.apiServers = sorted
		f.changed.Send()
	}
}

// fill adds the facts to known.
func (f *Facts) fill(known *Known) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known.Services = slices.Concat(known.Services, f.services)
	known.APIServers = slices.Concat(known.APIServers, f.apiServers)
}
