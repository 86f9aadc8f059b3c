package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/network"
)

// Look implements network.Host.
func (host) Look() (network.Surroundings, error) {
	var s network.Surroundings
	if err := available("GetIfTable2Ex", "GetUnicastIpAddressTable", "GetIpForwardTable2", "GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "FreeMibTable"); err != nil {
		return s, err
	}
	err := errors.Join(lookLinks(&s), lookRoutes(&s))
	return s, err
}

func lookLinks(s *network.Surroundings) error {
	rows, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return fmt.Errorf("cannot list network adapters: %w", err)
	}
	addrs, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot list addresses: %w", err)
	}
	for i := range rows {
		l := network.Link{Name: rows[i].Alias(), Up: rows[i].OperStatus == winipcfg.IfOperStatusUp, MTU: int(rows[i].MTU)}
		if row, err := rows[i].InterfaceLUID.IPInterface(windows.AF_INET); err == nil {
			l.Forwarding, l.WeakSend, l.MTU = row.ForwardingEnabled, row.WeakHostSend, int(row.NLMTU)
		}
		for j := range addrs {
			if addrs[j].InterfaceLUID == rows[i].InterfaceLUID {
				l.Add(netip.PrefixFrom(addrs[j].Address.Addr(), int(addrs[j].OnLinkPrefixLength)), addrs[j].SkipAsSource)
			}
		}
		s.Links = append(s.Links, l)
	}
	return nil
}

func lookRoutes(s *network.Surroundings) error {
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the routing table: %w", err)
	}
	for i := range rows {
		r := network.HostRoute{Dst: rows[i].DestinationPrefix.Prefix(), Via: rows[i].NextHop.Addr(),
			Ours: rows[i].Protocol == winipcfg.RouteProtocolNetMgmt && rows[i].Metric == routeProtocol}
		if row, err := rows[i].InterfaceLUID.Interface(); err == nil {
			r.Link = row.Alias()
		}
		if r.Dst.IsValid() && r.Dst.Bits() > 0 {
			s.Routes = append(s.Routes, r)
		}
	}
	return nil
}
