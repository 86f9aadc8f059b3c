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

// ipHelperAddresses sets service addresses on one interface through the IP Helper API. Windows does not record who
// added an address. Ours are those of the interface that are single hosts (/32, /128), added manually and never used as
// a source (SkipAsSource): no other program uses all three. The next proxy recognizes them by that.
type ipHelperAddresses struct {
	name string

	mu      sync.Mutex
	ours    map[netip.Addr]bool
	leaving map[netip.Addr]bool // removed by us, but removal not yet seen
}

// ErrNoInterface says that the host has no interface of a name.
var ErrNoInterface = errors.New("the host has no such interface")

// New returns the Addresses of an interface. If it does not exist, the error is ErrNoInterface; another error means
// that this is unknown.
func New(name string) (relay.Addresses, error) {
	a := &ipHelperAddresses{name: name, ours: map[netip.Addr]bool{}, leaving: map[netip.Addr]bool{}}
	_, err := a.luid()
	return a, err
}

// present returns an error if this Windows (or Wine) lacks a procedure, because winipcfg panics then.
func present(names ...string) error {
	library := windows.NewLazySystemDLL("iphlpapi.dll")
	for _, name := range names {
		if err := library.NewProc(name).Find(); err != nil {
			return fmt.Errorf("this system cannot change addresses: %w", err)
		}
	}
	return nil
}

// Set implements relay.Addresses. Windows supports only whole addresses.
func (a *ipHelperAddresses) Set(_ context.Context, local relay.Local) (answers bool, err error) {
	return false, a.set(local)
}

// HoldsPorts implements relay.Addresses: Windows cannot route by port.
func (*ipHelperAddresses) HoldsPorts(netip.Addr) bool { return false }

// LeadsAnswers implements relay.Addresses: Windows cannot open connections from an address that is not its own.
func (*ipHelperAddresses) LeadsAnswers() bool { return false }

// writers are the procedures that set calls.
var writers = []string{"GetUnicastIpAddressTable", "FreeMibTable", "InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
	"DeleteUnicastIpAddressEntry", "GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "SetIpInterfaceEntry"}

func (a *ipHelperAddresses) set(local relay.Local) error {
	want := local.Addresses
	err := present(writers...)
	if err != nil && len(want) == 0 {
		return nil // so there are none to remove
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
	return errors.Join(setModel(luid, known, want), change(luid, rows, add, remove, local.Added))
}

// setModel lets replies from the addresses in want leave through other interfaces, and reverts that for a family that
// has none.
func setModel(luid winipcfg.LUID, known map[netip.Addr]bool, want []netip.Addr) error {
	var errs []error
	for _, family := range []winipcfg.AddressFamily{windows.AF_INET, windows.AF_INET6} {
		v6 := family == windows.AF_INET6
		row, err := luid.IPInterface(family)
		if !serves(want, v6) && errors.Is(err, windows.ERROR_NOT_FOUND) {
			continue // the interface lacks this family
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot read the settings of the interface with the service addresses: %w", err))
			continue
		}
		have := HostModel{row.ForwardingEnabled, row.WeakHostSend, row.WeakHostReceive}
		next := have.next(known, want, v6)
		if next == have {
			continue
		}
		row.ForwardingEnabled, row.WeakHostSend, row.WeakHostReceive = next.Forwarding, next.WeakSend, next.WeakReceive
		row.SitePrefixLength = 0
		if err := row.Set(); err != nil {
			errs = append(errs, fmt.Errorf("cannot change forwarding and weak host sends of the interface with the service addresses: %w", err))
		}
	}
	return errors.Join(errs...)
}

// change removes and adds addresses of an interface; rows are its current addresses. added, if not nil, is called for
// each added address.
func change(luid winipcfg.LUID, rows map[netip.Addr]*winipcfg.MibUnicastIPAddressRow, add, remove []netip.Addr, added func(netip.Addr)) error {
	var errs []error
	for _, addr := range remove {
		if err := rows[addr].Delete(); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		}
	}
	for _, addr := range add {
		if err := create(luid, addr); err != nil && !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		} else if added != nil {
			added(addr)
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

// create adds one address that the host does not use as a source, without duplicate address detection.
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

// held returns the addresses of the interface, true for ours.
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

// expected reports whether we caused a change of the host's addresses. Windows may report that an address was added
// only when it is already being removed.
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
