package relaytest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// Addresses simulates a host's addresses for the relay. It refuses what a real host would refuse, and remembers who
// added each address. It is safe for concurrent use.
type Addresses struct {
	mu     sync.Mutex
	host   []netip.Addr
	ours   map[netip.Addr]bool
	broken map[netip.Addr]error
	hints  chan struct{}
	writes int
	inject bool
}

// NewAddresses returns the Addresses of a host with addrs.
func NewAddresses(addrs ...netip.Addr) *Addresses {
	return &Addresses{host: addrs, ours: map[netip.Addr]bool{}, broken: map[netip.Addr]error{}, hints: make(chan struct{}, 1)}
}

// Break makes an address fail to be added; nil repairs it.
func (a *Addresses) Break(addr netip.Addr, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.broken, addr); err != nil {
		a.broken[addr] = err
	}
}

// Inject makes one call in ten fail.
func (a *Addresses) Inject(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inject = on
}

func (a *Addresses) fails() error {
	if a.inject && proxytest.OneInTen() {
		return errors.New("injected failure of the host's addresses")
	}
	return nil
}

// SetHost changes the host's own addresses, and sends a hint.
func (a *Addresses) SetHost(addrs ...netip.Addr) {
	a.mu.Lock()
	a.host = addrs
	a.mu.Unlock()
	a.hints <- struct{}{}
}

// Set sets our addresses to want, which must be sorted, without duplicates, loopback addresses and those of the host.
func (a *Addresses) Set(_ context.Context, local relay.Local) (answers bool, err error) {
	return false, a.set(local.Addresses, local.Added)
}

func (a *Addresses) set(want []netip.Addr, added func(netip.Addr)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, addr := range want {
		if i > 0 && want[i-1].Compare(addr) >= 0 || addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(a.host, addr) {
			panic(fmt.Sprintf("address %s must not be asked for in %v", addr, want))
		}
	}
	if err := a.fails(); err != nil {
		return err
	}
	var errs []error
	next := map[netip.Addr]bool{}
	for _, addr := range want {
		if err := a.broken[addr]; err != nil {
			errs = append(errs, err)
			continue
		}
		next[addr] = true
		if !a.ours[addr] {
			a.writes++
			if added != nil {
				added(addr)
			}
		}
	}
	for addr := range a.ours {
		if !next[addr] {
			a.writes++
		}
	}
	a.ours = next
	return errors.Join(errs...)
}

// Host lists the addresses that are not ours.
func (a *Addresses) Host() ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.host), a.fails()
}

// Changes returns the hints of SetHost.
func (a *Addresses) Changes(context.Context) (<-chan struct{}, error) { return a.hints, nil }

// Writes returns the number of changes so far.
func (a *Addresses) Writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// String prints our addresses, sorted, one per line.
func (a *Addresses) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lines []string
	for addr := range a.ours {
		lines = append(lines, addr.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// HoldsPorts implements relay.Addresses: this host supports only whole addresses.
func (*Addresses) HoldsPorts(netip.Addr) bool { return false }

// LeadsAnswers implements relay.Addresses.
func (*Addresses) LeadsAnswers() bool { return false }

// Whole returns the same host for a back end that knows only whole addresses.
func (a *Addresses) Whole() Whole { return Whole{a} }

// Whole implements portproxy.Addresses.
type Whole struct{ of *Addresses }

// Set sets our addresses to want.
func (w Whole) Set(_ context.Context, want []netip.Addr) (added []netip.Addr, err error) {
	err = w.of.set(want, func(addr netip.Addr) { added = append(added, addr) })
	return added, err
}

// Host lists the addresses that are not ours.
func (w Whole) Host() ([]netip.Addr, error) { return w.of.Host() }
