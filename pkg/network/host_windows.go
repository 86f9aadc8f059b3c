package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

type windowsHost struct{}

// NewHost returns this host.
func NewHost() Host { return windowsHost{} }

// available says which of the functions Windows lacks: a missing one would otherwise be a panic.
func available(names ...string) error {
	dll := windows.NewLazySystemDLL("iphlpapi.dll")
	for _, name := range names {
		if err := dll.NewProc(name).Find(); err != nil {
			return fmt.Errorf("cannot use IP helper: %w", err)
		}
	}
	return nil
}

// Apply implements Host: the gateway's addresses on the host's adapter, and forwarding there. An address goes with its adapter, so that
// there is nothing to remove.
func (windowsHost) Apply(_ context.Context, s State) error {
	if len(s.Gateways) == 0 {
		return nil
	}
	if err := available("GetIfTable2Ex", "GetUnicastIpAddressTable", "InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
		"GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "SetIpInterfaceEntry", "FreeMibTable"); err != nil {
		return err
	}
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return fmt.Errorf("cannot list network adapters: %w", err)
	}
	addrs, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot list addresses: %w", err)
	}
	var errs []error
	for _, g := range s.Gateways {
		errs = append(errs, setGateway(links, addrs, g))
	}
	return errors.Join(errs...)
}

func setGateway(links []winipcfg.MibIfRow2, addrs []winipcfg.MibUnicastIPAddressRow, g Gateway) error {
	i := slices.IndexFunc(links, func(l winipcfg.MibIfRow2) bool { return l.Alias() == g.Interface })
	if i < 0 {
		return fmt.Errorf("cannot set address %s: there is no network adapter %q", g.Address, g.Interface)
	}
	luid := links[i].InterfaceLUID
	at := slices.IndexFunc(addrs, func(a winipcfg.MibUnicastIPAddressRow) bool { return a.Address.Addr() == g.Address.Addr() })
	if at >= 0 && addrs[at].InterfaceLUID != luid {
		return fmt.Errorf("cannot set address %s on %q: another adapter of this host has it", g.Address, g.Interface)
	}
	if at < 0 {
		if err := luid.AddIPAddress(g.Address); err != nil {
			return fmt.Errorf("cannot set address %s on %q: %w", g.Address, g.Interface, err)
		}
	}
	if err := forward(luid, g); err != nil {
		return fmt.Errorf("cannot switch on forwarding on %q: %w", g.Interface, err)
	}
	return nil
}

// forward lets the adapter pass on packets of the address's family.
func forward(luid winipcfg.LUID, g Gateway) error {
	family := winipcfg.AddressFamily(windows.AF_INET)
	if g.Address.Addr().Is6() {
		family = windows.AF_INET6
	}
	row, err := luid.IPInterface(family)
	if err != nil || row.ForwardingEnabled {
		return err
	}
	row.ForwardingEnabled, row.SitePrefixLength = true, 0
	return row.Set()
}

// Changes implements Host: adapters that come and go.
func (windowsHost) Changes(ctx context.Context) (<-chan struct{}, error) {
	if err := available("NotifyIpInterfaceChange", "CancelMibChangeNotify2"); err != nil {
		return nil, err
	}
	hints := make(chan struct{}, 1)
	callback, err := winipcfg.RegisterInterfaceChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPInterfaceRow) {
		select {
		case hints <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot subscribe to adapter changes: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = callback.Unregister() })
	return hints, nil
}
