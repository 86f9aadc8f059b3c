package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Look implements Host.
func (windowsHost) Look() (Surroundings, error) {
	var s Surroundings
	if err := available("GetIfTable2Ex", "GetUnicastIpAddressTable", "GetIpForwardTable2", "GetIpInterfaceEntry", "InitializeIpInterfaceEntry", "FreeMibTable"); err != nil {
		return s, err
	}
	err := errors.Join(lookLinks(&s), lookRoutes(&s))
	return s, err
}

// Examine implements Host.
func (h windowsHost) Examine(ctx context.Context, s *Symptoms) error {
	var err error
	if s.Surroundings, err = h.Look(); err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("adapters and routes: %v", err))
	}
	run := command.New()
	for _, name := range []string{"hns", "docker"} {
		if out, err := run.Run(ctx, nil, "sc.exe", "query", name); err != nil || !strings.Contains(string(out), "RUNNING") {
			s.Stopped = append(s.Stopped, name)
		}
	}
	out, err := run.Run(ctx, nil, "netsh", "interface", "ipv4", "show", "excludedportrange", "protocol=tcp")
	if err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("the excluded port ranges: %v", err))
	}
	s.Excluded = parseExcluded(string(out))
	rules, _ := netsh.New(run).Script(ctx, []string{netsh.Allowed(FirewallRule)}) // fails where there is none
	s.Admitted = strings.Contains(rules, FirewallRule)
	if s.Config.Mode == Overlay {
		s.Overlay, s.OverlayErr = hns.NewClient().Network(ctx, vxlan.DeviceName(true))
	}
	return nil
}

func lookLinks(s *Surroundings) error {
	rows, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)
	if err != nil {
		return fmt.Errorf("cannot list network adapters: %w", err)
	}
	addrs, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot list addresses: %w", err)
	}
	for i := range rows {
		l := Link{Name: rows[i].Alias(), Up: rows[i].OperStatus == winipcfg.IfOperStatusUp, MTU: int(rows[i].MTU)}
		if row, err := rows[i].InterfaceLUID.IPInterface(windows.AF_INET); err == nil {
			l.Forwarding, l.MTU = row.ForwardingEnabled, int(row.NLMTU)
		}
		for j := range addrs {
			if addrs[j].InterfaceLUID == rows[i].InterfaceLUID {
				l.Addrs = append(l.Addrs, netip.PrefixFrom(addrs[j].Address.Addr(), int(addrs[j].OnLinkPrefixLength)))
			}
		}
		s.Links = append(s.Links, l)
	}
	return nil
}

func lookRoutes(s *Surroundings) error {
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the routing table: %w", err)
	}
	for i := range rows {
		r := HostRoute{Dst: rows[i].DestinationPrefix.Prefix(), Via: rows[i].NextHop.Addr(),
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
