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

// Addresses is a host's addresses for the relay. It refuses what the real one would, and remembers who added what. It is safe for
// concurrent use.
type Addresses struct {
	mu     sync.Mutex
	host   []netip.Addr
	ours   map[netip.Addr]bool
	broken map[netip.Addr]error
	hints  chan struct{}
	writes int
	inject bool
}

// NewAddresses returns the Addresses of a host that has addrs.
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

// SetHost changes the host's own addresses, and hints.
func (a *Addresses) SetHost(addrs ...netip.Addr) {
	a.mu.Lock()
	a.host = addrs
	a.mu.Unlock()
	a.hints <- struct{}{}
}

// Set brings our addresses to want. want must be sorted, without repetition, loopback addresses and those of the host.
func (a *Addresses) Set(_ context.Context, local relay.Local) (answers bool, err error) {
	return false, a.set(local.Addresses)
}

func (a *Addresses) set(want []netip.Addr) error {
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

// Changes hints after SetHost.
func (a *Addresses) Changes(context.Context) (<-chan struct{}, error) { return a.hints, nil }

// Writes counts the changes made so far.
func (a *Addresses) Writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}

// String prints our addresses, sorted, one a line.
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

// HoldsPorts implements relay.Addresses: this host holds whole addresses only.
func (*Addresses) HoldsPorts(netip.Addr) bool { return false }

// LeadsAnswers implements relay.Addresses.
func (*Addresses) LeadsAnswers() bool { return false }

// Whole is the same host for a back end that knows whole addresses only.
func (a *Addresses) Whole() Whole { return Whole{a} }

// Whole implements portproxy.Addresses.
type Whole struct{ of *Addresses }

// Set makes the host hold want.
func (w Whole) Set(_ context.Context, want []netip.Addr) error { return w.of.set(want) }

// Host lists the addresses that are not ours.
func (w Whole) Host() ([]netip.Addr, error) { return w.of.Host() }
