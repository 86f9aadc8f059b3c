package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
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

// writers are what Apply calls.
var writers = []string{"GetIfTable2Ex", "GetUnicastIpAddressTable", "InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
	"GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "SetIpInterfaceEntry", "FreeMibTable"}

// Prepare implements Host: an l2bridge network is made in HNS, and the engine given its ID.
func (windowsHost) Prepare(_ context.Context, s State) (map[string]string, error) {
	if s.Bridge == nil {
		return nil, nil
	}
	id, err := hns.MakeBridge(*s.Bridge)
	return map[string]string{optionHNS: id}, err
}

// Of HNS, as Overlays.
func (windowsHost) MakeOverlay(o hns.Overlay) (vxlan.MAC, error) {
	router, err := hns.MakeOverlay(o)
	return vxlan.MAC(router), err
}
func (windowsHost) RemoveOverlay(name string) error { return hns.RemoveOverlay(name) }
func (windowsHost) PodEndpoints(network string) ([]hns.PodEndpoint, error) {
	return hns.PodEndpoints(network)
}
func (windowsHost) MakeEndpoint(o hns.Overlay, e hns.PodEndpoint) (string, error) {
	return hns.MakeEndpoint(o, e)
}
func (windowsHost) AttachEndpoint(id, container string) error {
	return hns.AttachEndpoint(id, container)
}
func (windowsHost) RemoveEndpoint(e hns.PodEndpoint) error { return hns.RemoveEndpoint(e) }

var _ Overlays = windowsHost{}

// Connected implements Host: the engine has each container's address as an endpoint in HNS.
func (windowsHost) Connected(_ context.Context, n pod.EngineNetwork) ([]netip.Addr, bool, error) {
	id := n.Options[optionHNS]
	if id == "" {
		return nil, false, nil
	}
	addrs, err := hns.LocalAddresses(id)
	return addrs, err == nil, err
}

// Apply implements Host: the host's endpoint on an l2bridge network, the gateway's addresses on the host's adapter, and forwarding. An address
// goes with its adapter, so that there is nothing to remove.
func (windowsHost) Apply(_ context.Context, s State) error {
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
	if err := forward(luid, g.Address.Addr()); err != nil {
		return fmt.Errorf("cannot switch on forwarding on %q: %w", g.Interface, err)
	}
	return nil
}

// forward lets the adapter pass on packets of the address's family.
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

// Changes implements Host: adapters that come and go, HNS that ends and is there again. An older HNS does not tell.
func (windowsHost) Changes(ctx context.Context) (<-chan struct{}, error) {
	if err := available("NotifyIpInterfaceChange", "CancelMibChangeNotify2"); err != nil {
		return nil, err
	}
	hints := make(chan struct{}, 1)
	tell := func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
	callback, err := winipcfg.RegisterInterfaceChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPInterfaceRow) { tell() })
	if err != nil {
		return nil, fmt.Errorf("cannot subscribe to adapter changes: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = callback.Unregister() })
	if err := hns.Watch(ctx, tell); err != nil && !errors.Is(err, hns.ErrOld) {
		return hints, err
	}
	return hints, nil
}
