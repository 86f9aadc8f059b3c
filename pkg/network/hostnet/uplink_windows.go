package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/network"
)

// Uplink implements network.Windows. It ignores DHCP settings, which Windows itself renews.
func (host) Uplink(a netip.Addr) (*network.Uplink, error) {
	if err := available("GetIfTable2Ex", "GetUnicastIpAddressTable", "GetIpForwardTable2", "FreeMibTable"); err != nil {
		return nil, err
	}
	links, addrs, err := tables()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(addrs, func(r winipcfg.MibUnicastIPAddressRow) bool { return r.Address.Addr() == a })
	if at < 0 || addrs[at].PrefixOrigin != winipcfg.PrefixOriginManual {
		return nil, nil
	}
	luid, u := addrs[at].InterfaceLUID, &network.Uplink{}
	for i := range links {
		if links[i].InterfaceLUID == luid {
			u.Interface = links[i].Alias()
		}
	}
	for i := range addrs {
		if r := &addrs[i]; r.InterfaceLUID == luid && r.PrefixOrigin == winipcfg.PrefixOriginManual && !r.SkipAsSource {
			u.Addresses = append(u.Addresses, netip.PrefixFrom(r.Address.Addr(), int(r.OnLinkPrefixLength)))
		}
	}
	return u, readWays(u, luid)
}

// readWays reads the default routes and the DNS servers of an adapter.
func readWays(u *network.Uplink, luid winipcfg.LUID) error {
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the routing table: %w", err)
	}
	for i := range rows {
		if via := rows[i].NextHop.Addr(); rows[i].InterfaceLUID == luid && rows[i].DestinationPrefix.PrefixLength == 0 && !via.IsUnspecified() {
			u.Gateways = append(u.Gateways, via)
		}
	}
	if u.DNS, err = luid.DNS(); err != nil {
		return fmt.Errorf("cannot read the DNS servers of %q: %w", u.Interface, err)
	}
	u.DNS = slices.DeleteFunc(u.DNS, netip.Addr.Is6) // Windows reports site-local servers if there are none
	return nil
}

// Restore implements network.Windows. It uses the host's adapter on the virtual switch, or else the network adapter.
func (host) Restore(_ context.Context, u network.Uplink) error {
	links, addrs, err := tables()
	if err != nil {
		return err
	}
	below := network.BelowAdapter(u.Interface)
	for _, name := range []string{network.AdapterOf(below), network.AdapterOf("HNSTransparent"), below} {
		i := slices.IndexFunc(links, func(l winipcfg.MibIfRow2) bool { return l.Alias() == name })
		if i >= 0 {
			return putBack(u, links[i].InterfaceLUID, addrs)
		}
	}
	return fmt.Errorf("cannot restore the settings of %q: the adapter is gone", u.Interface)
}

func putBack(u network.Uplink, luid winipcfg.LUID, addrs []winipcfg.MibUnicastIPAddressRow) error {
	var errs []error
	for _, p := range u.Addresses {
		has := func(r winipcfg.MibUnicastIPAddressRow) bool {
			return r.InterfaceLUID == luid && r.Address.Addr() == p.Addr()
		}
		if !slices.ContainsFunc(addrs, has) {
			errs = append(errs, luid.AddIPAddress(p))
		}
	}
	for _, via := range u.Gateways {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if via.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		if err := luid.AddRoute(all, via, 0); !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
			errs = append(errs, err)
		}
	}
	if len(u.DNS) > 0 {
		errs = append(errs, luid.SetDNS(windows.AF_INET, u.DNS, nil))
	}
	return errors.Join(errs...)
}
