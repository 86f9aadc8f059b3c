package relay

import (
	"context"
	"fmt"
	"net/netip"
)

// Addresses makes the addresses of services local to this host, so that they can be listened on.
type Addresses interface {
	// Set makes the host hold want, and of the addresses that are ours no others; addresses that are not ours are never touched. want is
	// sorted and without loopback. It lists once, compares, and applies the difference: calling it twice changes nothing, and nothing
	// wanted removes every trace. Errors of single addresses are *AddressError, joined; the rest is applied.
	Set(ctx context.Context, want []netip.Addr) error
	// Host lists the addresses that the host has beside ours, loopback ones included.
	Host() ([]netip.Addr, error)
	// Changes has an element whenever the host's addresses changed by someone else's hand, until ctx ends. It is only a hint.
	Changes(ctx context.Context) (<-chan struct{}, error)
}

// clientKeeper is the ability of Addresses to lead endpoints' answers to clients back to this host, so that connections to endpoints can carry
// the client's address.
type clientKeeper interface {
	CanKeepClients() bool
	KeepClients(wanted bool) // takes effect with the next Set
	KeepsClients() bool      // what the last Set made of it
}

// AddressError says why one address could not be brought to, or taken from, the host.
type AddressError struct {
	Addr netip.Addr
	Err  error
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("cannot change service address %s of this host: %v", e.Addr, e.Err)
}

func (e *AddressError) Unwrap() error { return e.Err }

// OwnInterface is the dummy interface that holds the service addresses where no other is named (Linux). It is made when needed and
// removed with the last address.
const OwnInterface = "winkube-svc"

// plan is the difference between the addresses that are ours on the interface and those wanted.
func plan(have map[netip.Addr]bool, want []netip.Addr) (add, remove []netip.Addr) {
	wanted := make(map[netip.Addr]bool, len(want))
	for _, addr := range want {
		wanted[addr] = true
		if _, ok := have[addr]; !ok {
			add = append(add, addr)
		}
	}
	for addr, ours := range have {
		if ours && !wanted[addr] {
			remove = append(remove, addr)
		}
	}
	return add, remove
}
