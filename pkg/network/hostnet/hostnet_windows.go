package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

type host struct{}

// New returns this host.
func New() network.Host { return host{} }

// Windows is what only Windows has.
func Windows() network.Windows { return host{} }

// available is an error if Windows lacks one of the functions: to call it would panic.
func available(names ...string) error {
	dll := windows.NewLazySystemDLL("iphlpapi.dll")
	for _, name := range names {
		if err := dll.NewProc(name).Find(); err != nil {
			return fmt.Errorf("cannot use IP helper: %w", err)
		}
	}
	return nil
}

// writers are the functions that Apply calls.
var writers = []string{"GetIfTable2Ex", "GetUnicastIpAddressTable", "InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
	"GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "SetIpInterfaceEntry", "FreeMibTable"}

// MakeBridge implements network.Windows.
func (host) MakeBridge(b hns.Bridge) (id string, err error) { return hns.MakeBridge(b) }

// Addresses implements network.Windows.
func (host) Addresses(network string) ([]netip.Addr, error) { return hns.LocalAddresses(network) }

// MakeOverlay implements network.Windows.
func (host) MakeOverlay(o hns.Overlay) (vxlan.MAC, error) {
	router, err := hns.MakeOverlay(o)
	return vxlan.MAC(router), err
}

// RemoveOverlay implements network.Windows.
func (host) RemoveOverlay(name string) error { return hns.RemoveOverlay(name) }

// PodEndpoints implements endpoints.HNS.
func (host) PodEndpoints(network string) ([]hns.PodEndpoint, error) { return hns.PodEndpoints(network) }

// MakeEndpoint implements endpoints.HNS.
func (host) MakeEndpoint(o hns.Overlay, e hns.PodEndpoint) (string, error) {
	return hns.MakeEndpoint(o, e)
}

// AttachEndpoint implements endpoints.HNS.
func (host) AttachEndpoint(id, container string) error { return hns.AttachEndpoint(id, container) }

// RemoveEndpoint implements endpoints.HNS.
func (host) RemoveEndpoint(e hns.PodEndpoint) error { return hns.RemoveEndpoint(e) }

// Apply implements network.Host: the host's endpoint on an l2bridge network, the gateway's addresses on the host's adapter, and forwarding. An address
// goes with its adapter, so there is nothing to remove.
func (host) Apply(_ context.Context, s network.State) error {
	if len(s.Gateways) == 0 {
		return nil
	}
	if err := available(writers...); err != nil {
		return err
	}
	links, addrs, err := tables()
	if err != nil {
		return err
	}
	if missing := !slices.ContainsFunc(links, func(l winipcfg.MibIfRow2) bool { return l.Alias() == s.Gateways[0].Interface }); s.Bridge != nil {
		if err := hns.JoinBridge(*s.Bridge, missing); err != nil {
			return err
		}
		if links, addrs, err = tables(); err != nil {
			return err
		}
	}
	errs := []error{forwardAt(addrs, s.Forward)}
	for _, g := range s.Gateways {
		errs = append(errs, setGateway(links, addrs, g))
	}
	return errors.Join(errs...)
}

// tables are the adapters and addresses of this host.
func tables() ([]winipcfg.MibIfRow2, []winipcfg.MibUnicastIPAddressRow, error) {
	links, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list network adapters: %w", err)
	}
	addrs, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	return links, addrs, nil
}

// forwardAt switches on forwarding on the adapters that have the addresses: what comes from other nodes arrives there.
func forwardAt(addrs []winipcfg.MibUnicastIPAddressRow, at []netip.Addr) error {
	var errs []error
	for i := range addrs {
		if slices.Contains(at, addrs[i].Address.Addr()) {
			if err := forward(addrs[i].InterfaceLUID, addrs[i].Address.Addr()); err != nil {
				errs = append(errs, fmt.Errorf("cannot switch on forwarding where %s is: %w", addrs[i].Address.Addr(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func setGateway(links []winipcfg.MibIfRow2, addrs []winipcfg.MibUnicastIPAddressRow, g network.Gateway) error {
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
	if err := forward(luid, g.Address.Addr()); err != nil {
		return fmt.Errorf("cannot switch on forwarding on %q: %w", g.Interface, err)
	}
	return nil
}

// forward switches on forwarding on an adapter for the address's family.
func forward(luid winipcfg.LUID, addr netip.Addr) error {
	family := winipcfg.AddressFamily(windows.AF_INET)
	if addr.Is6() {
		family = windows.AF_INET6
	}
	row, err := luid.IPInterface(family)
	if err != nil || row.ForwardingEnabled {
		return err
	}
	row.ForwardingEnabled, row.SitePrefixLength = true, 0
	return row.Set()
}

// Watch implements network.Host: adapters that come and go, HNS that ends and starts. An older HNS does not notify.
func (host) Watch(ctx context.Context, hints wake.Signal) (wait func(), err error) {
	var group sync.WaitGroup
	if err := available("NotifyIpInterfaceChange", "CancelMibChangeNotify2"); err != nil {
		return group.Wait, err
	}
	callback, err := winipcfg.RegisterInterfaceChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPInterfaceRow) { hints.Send() })
	if err != nil {
		return group.Wait, fmt.Errorf("cannot subscribe to adapter changes: %w", err)
	}
	group.Go(func() {
		<-ctx.Done()
		_ = callback.Unregister()
	})
	if err := hns.Watch(ctx, hints.Send); err != nil && !errors.Is(err, hns.ErrOld) {
		return group.Wait, err
	}
	return group.Wait, nil
}
