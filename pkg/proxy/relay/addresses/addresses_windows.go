package addresses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/wake"
)

// ipHelperAddresses holds service addresses on one interface by the IP Helper API. Windows has no mark for who added an address; ours are
// those of the interface that are whole hosts (/32, /128), added manually and never used as a source (SkipAsSource): no other program asks for
// all three. That is how the next proxy knows them again.
type ipHelperAddresses struct {
	name string

	mu      sync.Mutex
	ours    map[netip.Addr]bool
	leaving map[netip.Addr]bool // removed by us, not yet seen to go
}

// ErrNoInterface is that the host has no interface of a name.
var ErrNoInterface = errors.New("the host has no such interface")

// New returns the Addresses of an interface, which must exist: else the error is ErrNoInterface. Another error says that it is not known.
func New(name string) (relay.Addresses, error) {
	a := &ipHelperAddresses{name: name, ours: map[netip.Addr]bool{}, leaving: map[netip.Addr]bool{}}
	_, err := a.luid()
	return a, err
}

// present fails where this Windows (or Wine) lacks a procedure that winipcfg would otherwise panic for.
func present(names ...string) error {
	library := windows.NewLazySystemDLL("iphlpapi.dll")
	for _, name := range names {
		if err := library.NewProc(name).Find(); err != nil {
			return fmt.Errorf("this system cannot change addresses: %w", err)
		}
	}
	return nil
}

// Set implements relay.Addresses. Whole addresses are all that Windows has.
func (a *ipHelperAddresses) Set(_ context.Context, local relay.Local) (answers bool, err error) {
	return false, a.set(local.Addresses)
}

// HoldsPorts implements relay.Addresses: Windows has no rules of routing by port.
func (*ipHelperAddresses) HoldsPorts(netip.Addr) bool { return false }

// LeadsAnswers implements relay.Addresses: Windows opens no connection with an address that is not its own.
func (*ipHelperAddresses) LeadsAnswers() bool { return false }

func (a *ipHelperAddresses) set(want []netip.Addr) error {
	err := present("GetUnicastIpAddressTable", "FreeMibTable", "InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
		"DeleteUnicastIpAddressEntry")
	if err != nil && len(want) == 0 {
		return nil // there can be none to remove
	}
	if err != nil {
		return err
	}
	luid, err := a.luid()
	if err != nil {
		return err
	}
	rows, err := a.rows(luid)
	if err != nil {
		return err
	}
	known := map[netip.Addr]bool{}
	for addr, row := range rows {
		known[addr] = isOurs(row)
	}
	add, remove := plan(known, want)
	a.note(want, remove)
	return change(luid, rows, add, remove)
}

// change removes and adds addresses of an interface; rows are those that it has.
func change(luid winipcfg.LUID, rows map[netip.Addr]*winipcfg.MibUnicastIPAddressRow, add, remove []netip.Addr) error {
	var errs []error
	for _, addr := range remove {
		if err := rows[addr].Delete(); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		}
	}
	for _, addr := range add {
		if err := create(luid, addr); err != nil && !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		}
	}
	return errors.Join(errs...)
}

// luid finds the interface, whether it is up or not.
func (a *ipHelperAddresses) luid() (winipcfg.LUID, error) {
	if err := present("GetIfTable2Ex", "FreeMibTable"); err != nil {
		return 0, err
	}
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return 0, fmt.Errorf("cannot list interfaces: %w", err)
	}
	for i := range links {
		if links[i].Alias() == a.name {
			return links[i].InterfaceLUID, nil
		}
	}
	return 0, fmt.Errorf("cannot find interface %q: %w", a.name, ErrNoInterface)
}

// rows lists the addresses of an interface.
func (a *ipHelperAddresses) rows(luid winipcfg.LUID) (map[netip.Addr]*winipcfg.MibUnicastIPAddressRow, error) {
	all, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	out := map[netip.Addr]*winipcfg.MibUnicastIPAddressRow{}
	for i := range all {
		if all[i].InterfaceLUID == luid {
			out[all[i].Address.Addr().WithZone("")] = &all[i]
		}
	}
	return out, nil
}

func isOurs(row *winipcfg.MibUnicastIPAddressRow) bool {
	addr := row.Address.Addr()
	return row.SkipAsSource && int(row.OnLinkPrefixLength) == addr.BitLen() && row.PrefixOrigin == winipcfg.PrefixOriginManual
}

// create adds one address: the host is not to use it as its own, and need not ask the network whether it is free.
func create(luid winipcfg.LUID, addr netip.Addr) error {
	var row winipcfg.MibUnicastIPAddressRow
	row.Init()
	row.InterfaceLUID = luid
	if err := row.Address.SetAddr(addr); err != nil {
		return err
	}
	row.OnLinkPrefixLength = uint8(addr.BitLen())
	row.SkipAsSource = true
	row.PrefixOrigin, row.SuffixOrigin = winipcfg.PrefixOriginManual, winipcfg.SuffixOriginManual
	row.DadState = winipcfg.DadStatePreferred
	row.ValidLifetime, row.PreferredLifetime = 0xffffffff, 0xffffffff
	return row.Create()
}

func (a *ipHelperAddresses) note(want, remove []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range remove {
		a.leaving[addr] = true
	}
	a.ours = make(map[netip.Addr]bool, len(want))
	for _, addr := range want {
		a.ours[addr] = true
		delete(a.leaving, addr)
	}
}

// Host implements relay.Addresses.
func (a *ipHelperAddresses) Host() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	ours, err := a.held()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(network.IP); ok && !ours[addr.Unmap()] {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, nil
}

// held are the addresses of the interface, true for those of ours.
func (a *ipHelperAddresses) held() (map[netip.Addr]bool, error) {
	held := map[netip.Addr]bool{}
	if present("GetUnicastIpAddressTable", "FreeMibTable") != nil {
		return held, nil
	}
	luid, err := a.luid()
	if err != nil {
		return nil, err
	}
	rows, err := a.rows(luid)
	if err != nil {
		return nil, err
	}
	for addr, row := range rows {
		held[addr] = isOurs(row)
	}
	return held, nil
}

// Changes implements relay.Addresses.
func (a *ipHelperAddresses) Changes(ctx context.Context) (<-chan struct{}, error) {
	if err := present("NotifyUnicastIpAddressChange", "CancelMibChangeNotify2"); err != nil {
		return nil, err
	}
	hints := wake.New()
	callback, err := winipcfg.RegisterUnicastAddressChangeCallback(func(kind winipcfg.MibNotificationType, row *winipcfg.MibUnicastIPAddressRow) {
		if row == nil || kind == winipcfg.MibParameterNotification || a.expected(row.Address.Addr().WithZone(""), kind == winipcfg.MibAddInstance) {
			return
		}
		hints.Send()
	})
	if err != nil {
		return nil, fmt.Errorf("cannot watch the host's addresses: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = callback.Unregister() })
	return hints, nil
}

// expected says whether a change of the host's addresses is our own doing. That one was added may be told only when it is on its way out again.
func (a *ipHelperAddresses) expected(addr netip.Addr, added bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if added {
		return a.ours[addr] || a.leaving[addr]
	}
	expected := a.leaving[addr]
	delete(a.leaving, addr)
	return expected
}
