package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// routingTable is the host's routing table (IP Helper API) and the remote subnets of the overlay network that the
// kubelet creates in HNS. Neither survives a reboot: the programs restore both.
type routingTable struct{}

// NewRoutingTable returns the host's routing table.
func NewRoutingTable() (RoutingTable, error) { return routingTable{}, nil }

// available reports an error if this Windows lacks one of the procedures, because winipcfg panics then.
func available(names ...string) error {
	dll := windows.NewLazySystemDLL("iphlpapi.dll")
	for _, name := range names {
		if err := dll.NewProc(name).Find(); err != nil {
			return fmt.Errorf("cannot use the routing table: %w", err)
		}
	}
	return nil
}

// ours reports whether row carries our mark: a static route with our metric.
func ours(row *winipcfg.MibIPforwardRow2) bool {
	return row.Protocol == winipcfg.RouteProtocolNetMgmt && row.Metric == Protocol
}

// List implements RoutingTable.
func (routingTable) List(context.Context) (Host, error) {
	if err := available("GetIpForwardTable2", "FreeMibTable"); err != nil {
		return Host{}, err
	}
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return Host{}, fmt.Errorf("cannot read the routing table: %w", err)
	}
	host := listed(rows)
	listTunnel(&host)
	return host, nil
}

// listed sorts the rows of the routing table into ours and foreign ones.
func listed(rows []winipcfg.MibIPforwardRow2) (host Host) {
	for i := range rows {
		row := &rows[i]
		r := Route{Dst: row.DestinationPrefix.Prefix(), Via: row.NextHop.Addr()}
		switch {
		case !r.Dst.IsValid():
		case ours(row):
			host.Ours = append(host.Ours, r)
		default:
			if r.Via.IsUnspecified() {
				r.Via = netip.Addr{}
				if network(r.Dst) {
					host.Networks = append(host.Networks, r.Dst)
				}
			}
			host.Foreign = append(host.Foreign, r)
		}
	}
	return host
}

// listTunnel adds the remote subnets of HNS. Without an overlay network there are none.
func listTunnel(host *Host) {
	subnets, err := hns.RemoteSubnets(vxlan.DeviceName(true))
	none := errors.Is(err, hns.ErrNotFound) || errors.Is(err, hns.ErrOld) || errors.Is(err, hns.ErrNoContainers)
	if err != nil && !none {
		host.TunnelErr = err
	}
	ours, peers := tunnels(subnets)
	host.Ours, host.Peers = append(host.Ours, ours...), peers
}

// Change implements RoutingTable.
func (t routingTable) Change(ctx context.Context, d Diff) error {
	d, tunnel := split(d)
	return errors.Join(changeTunnel(tunnel), t.changeTable(ctx, d))
}

// changeTunnel applies d to the overlay network.
func changeTunnel(d Diff) error {
	if d.Empty() {
		return nil
	}
	have, err := hns.RemoteSubnets(vxlan.DeviceName(true))
	if err != nil {
		return fmt.Errorf("cannot find the overlay network, which a kubelet with --network-mode=overlay creates: %w", err)
	}
	remove, add := hns.ChangedSubnets(have, subnetsAfter(have, d))
	return hns.ChangeSubnets(vxlan.DeviceName(true), vxlan.VNI, remove, add)
}

// changeTable applies d to the routing table.
func (routingTable) changeTable(ctx context.Context, d Diff) error {
	if d.Empty() {
		return nil
	}
	if err := available("CreateIpForwardEntry2", "DeleteIpForwardEntry2", "InitializeIpForwardEntry", "GetUnicastIpAddressTable"); err != nil {
		return err
	}
	rows, err := winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the routing table: %w", err)
	}
	addrs, err := winipcfg.GetUnicastIPAddressTable(windows.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("cannot read the host's addresses: %w", err)
	}
	return change(ctx, rows, addrs, d)
}

// change applies d to the table's rows; addrs identify the interfaces.
func change(ctx context.Context, rows []winipcfg.MibIPforwardRow2, addrs []winipcfg.MibUnicastIPAddressRow, d Diff) error {
	var errs []error
	for _, r := range d.Remove {
		errs = append(errs, remove(rows, r))
	}
	for _, r := range d.Replace {
		// Routes with different next hops can coexist, so add first and leave no gap.
		if err := add(addrs, r.New); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, remove(rows, r.Old))
	}
	for _, r := range d.Add {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		errs = append(errs, add(addrs, r))
	}
	return errors.Join(errs...)
}

func remove(rows []winipcfg.MibIPforwardRow2, r Route) error {
	for i := range rows {
		row := &rows[i]
		if !ours(row) || row.DestinationPrefix.Prefix() != r.Dst || row.NextHop.Addr() != r.Via {
			continue
		}
		if err := row.Delete(); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
			return fmt.Errorf("cannot remove route %s: %w", r, err)
		}
	}
	return nil
}

func add(addrs []winipcfg.MibUnicastIPAddressRow, r Route) error {
	luid, ok := towards(addrs, r.Peer)
	if !ok {
		return fmt.Errorf("cannot add route %s to node %s: no interface of this host is in the network of %s", r, r.Node, r.Peer)
	}
	var row winipcfg.MibIPforwardRow2
	row.Init()
	row.InterfaceLUID, row.Metric, row.Protocol = luid, Protocol, winipcfg.RouteProtocolNetMgmt
	if err := errors.Join(row.DestinationPrefix.SetPrefix(r.Dst), row.NextHop.SetAddr(r.Via)); err != nil {
		return fmt.Errorf("cannot write route %s: %w", r, err)
	}
	if err := row.Create(); err != nil && !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		return fmt.Errorf("cannot add route %s to node %s: %w", r, r.Node, err)
	}
	return nil
}

// towards finds the interface whose network contains peer.
func towards(addrs []winipcfg.MibUnicastIPAddressRow, peer netip.Addr) (winipcfg.LUID, bool) {
	for i := range addrs {
		own := addrs[i].Address.Addr()
		p, err := own.Prefix(int(addrs[i].OnLinkPrefixLength))
		if err == nil && p.Bits() < own.BitLen() && p.Contains(peer) {
			return addrs[i].InterfaceLUID, true
		}
	}
	return 0, false
}

// Changes implements RoutingTable.
func (routingTable) Changes(ctx context.Context) (<-chan struct{}, error) {
	if err := available("NotifyRouteChange2", "CancelMibChangeNotify2"); err != nil {
		return nil, fmt.Errorf("cannot subscribe to changes: %w", err)
	}
	hints := wake.New()
	callback, err := winipcfg.RegisterRouteChangeCallback(func(kind winipcfg.MibNotificationType, _ *winipcfg.MibIPforwardRow2) {
		if kind == winipcfg.MibDeleteInstance {
			hints.Send()
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot subscribe to route changes: %w", err)
	}
	// A callback may still be running when it is unregistered, so hints stays open; its reader ends with ctx.
	context.AfterFunc(ctx, func() { _ = callback.Unregister() })
	_ = hns.Watch(ctx, hints.Send) // of the overlay network; on a Windows without such notifications there are no hints
	return hints, nil
}
