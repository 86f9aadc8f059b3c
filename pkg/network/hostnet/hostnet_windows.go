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

type host struct {
	note network.ForwardingFile // records where forwarding was off
}

// New returns this host.
func New() network.Host { return host{} }

// Noting returns this host; before it enables forwarding on an adapter of the node's own addresses, it records in note that forwarding was off.
func Noting(note network.ForwardingFile) network.Host { return host{note} }

// Windows returns the functions that exist only on Windows.
func Windows() network.Windows { return host{} }

// available returns an error if Windows lacks one of the functions: calling it would panic.
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
	"GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "SetIpInterfaceEntry", "GetIpForwardTable2", "DeleteIpForwardEntry2", "FreeMibTable"}

// MakeBridge implements network.Windows.
func (host) MakeBridge(b hns.Bridge) (hns.ID, error) { return hns.MakeBridge(b) }

// RemoveBridge implements network.Windows.
func (host) RemoveBridge(name string) error { return hns.RemoveBridge(name) }

// Addresses implements network.Windows.
func (host) Addresses(network hns.ID) ([]netip.Addr, error) { return hns.LocalAddresses(network) }

// MakeOverlay implements network.Windows.
func (host) MakeOverlay(o hns.Overlay) (vxlan.MAC, error) {
	router, err := hns.MakeOverlay(o)
	return vxlan.MAC(router), err
}

// RemoveOverlay implements network.Windows.
func (host) RemoveOverlay(name string) error { return hns.RemoveOverlay(name) }

// RemoveHNS removes the networks of that name from HNS.
func RemoveHNS(name string) (removed bool, err error) { return hns.RemoveNetwork(name) }

// PodEndpoints implements endpoints.HNS.
func (host) PodEndpoints(network string) ([]hns.PodEndpoint, error) { return hns.PodEndpoints(network) }

// CompleteEndpoints implements network.Windows.
func (host) CompleteEndpoints(o hns.Overlay) error { return hns.CompleteEndpoints(o) }

// MakeEndpoint implements endpoints.HNS.
func (host) MakeEndpoint(n hns.PodNetwork, e hns.PodEndpoint) (hns.ID, error) {
	return hns.MakeEndpoint(n, e)
}

// AttachEndpoint implements endpoints.HNS.
func (host) AttachEndpoint(id hns.ID, container string) error {
	return hns.AttachEndpoint(id, container)
}

// RemoveEndpoint implements endpoints.HNS.
func (host) RemoveEndpoint(e hns.PodEndpoint) error { return hns.RemoveEndpoint(e) }

// Apply implements network.Host: it configures the host's endpoint on an l2bridge network, the gateway's addresses on the host's adapter, and
// forwarding. An address is removed with its adapter, so there is nothing to clean up.
func (h host) Apply(_ context.Context, s network.State) error {
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
	errs := []error{h.forwardAt(links, addrs, s.Forward)}
	for _, g := range s.Gateways {
		errs = append(errs, setGateway(links, addrs, g))
	}
	return errors.Join(append(errs, removeLoops(s.Gateways))...)
}

// removeLoops removes default routes whose next hop is a gateway of pods, which is the host itself. An endpoint of the host may get such a route from
// its network (microsoft/SDN start-kubelet.ps1 gives it the gateway 0.0.0.0), and the host would lose its real default route.
func removeLoops(gateways []network.Gateway) error {
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the routing table: %w", err)
	}
	var errs []error
	for i := range rows {
		via := rows[i].NextHop.Addr()
		own := slices.ContainsFunc(gateways, func(g network.Gateway) bool { return g.Address.Addr() == via })
		if !own || rows[i].DestinationPrefix.PrefixLength > 0 {
			continue
		}
		if err := rows[i].Delete(); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
			errs = append(errs, fmt.Errorf("cannot remove the default route via %s, which is this host itself: %w", via, err))
		}
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

// forwardAt enables forwarding on the adapters that have the addresses: packets from other nodes arrive there.
func (h host) forwardAt(links []winipcfg.MibIfRow2, addrs []winipcfg.MibUnicastIPAddressRow, at []netip.Addr) error {
	var errs []error
	for i := range addrs {
		luid, addr := addrs[i].InterfaceLUID, addrs[i].Address.Addr()
		if !slices.Contains(at, addr) {
			continue
		}
		note := func() error {
			for j := range links {
				if links[j].InterfaceLUID == luid {
					return h.note.Add(network.Forwarding{Interface: links[j].Alias(), IPv6: addr.Is6()})
				}
			}
			return nil
		}
		if err := forward(luid, addr.Is6(), note); err != nil {
			errs = append(errs, fmt.Errorf("cannot switch on forwarding where %s is: %w", addr, err))
		}
	}
	return errors.Join(errs...)
}

// StopForwarding disables forwarding that Noting recorded; was says that it was enabled. If the adapter no longer exists, there is nothing to do.
func StopForwarding(one network.Forwarding) (was bool, err error) {
	if err := available(writers...); err != nil {
		return false, err
	}
	links, _, err := tables()
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(links, func(l winipcfg.MibIfRow2) bool { return l.Alias() == one.Interface })
	if i < 0 {
		return false, nil
	}
	row, err := links[i].InterfaceLUID.IPInterface(family(one.IPv6))
	if errors.Is(err, windows.ERROR_NOT_FOUND) {
		return false, nil // the adapter no longer has this family
	}
	if err == nil && row.ForwardingEnabled {
		row.ForwardingEnabled, row.SitePrefixLength = false, 0
		was, err = true, row.Set()
	}
	if err != nil {
		return false, fmt.Errorf("cannot switch off forwarding on %q: %w", one.Interface, err)
	}
	return was, nil
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
	if err := forward(luid, g.Address.Addr().Is6(), func() error { return nil }); err != nil { // this adapter is removed with the network
		return fmt.Errorf("cannot switch on forwarding on %q: %w", g.Interface, err)
	}
	return nil
}

func family(six bool) winipcfg.AddressFamily {
	if six {
		return windows.AF_INET6
	}
	return windows.AF_INET
}

// forward enables forwarding on an adapter for a family. If it was off, forward first calls note.
func forward(luid winipcfg.LUID, six bool, note func() error) error {
	row, err := luid.IPInterface(family(six))
	if err != nil || row.ForwardingEnabled {
		return err
	}
	if err := note(); err != nil {
		return err
	}
	row.ForwardingEnabled, row.SitePrefixLength = true, 0
	return row.Set()
}

// Watch implements network.Host: it watches adapters, and starts and stops of HNS. An older HNS does not notify.
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
