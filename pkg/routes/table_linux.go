package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// table is the main routing table of one network namespace, by netlink.
type table struct {
	handle *netlink.Handle
	ns     netns.NsHandle
}

// NewTable returns the routing table of the network namespace of the calling thread.
func NewTable() (Table, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("cannot open the network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open netlink: %w", err), ns.Close())
	}
	return &table{handle: h, ns: ns}, nil
}

// List implements Table.
func (t *table) List(context.Context) (Host, error) {
	var host Host
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := t.handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return Host{}, fmt.Errorf("cannot list the main routing table: %w", err)
		}
		for _, r := range list {
			route := Route{Dst: prefix(r.Dst), Via: addr(r.Gw), Src: addr(r.Src)}
			switch {
			case !route.Dst.IsValid():
			case r.Protocol == Protocol:
				host.Ours = append(host.Ours, route)
			case r.Priority == metric(family): // others with that metric would collide; with any other they stand beside ours
				host.Foreign = append(host.Foreign, route)
			}
		}
	}
	addrs, err := t.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return Host{}, fmt.Errorf("cannot list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 { // until then the kernel refuses it as a source
			host.Addrs = append(host.Addrs, addr(a.IP))
		}
	}
	return host, nil
}

// metric is that of routes that ask for none.
func metric(family int) int {
	if family == netlink.FAMILY_V6 {
		return 1024
	}
	return 0
}

// Change implements Table.
func (t *table) Change(ctx context.Context, d Diff) error {
	var errs []error
	for _, r := range d.Remove {
		err := t.handle.RouteDel(&netlink.Route{Dst: ipNet(r.Dst), Gw: ip(r.Via), Table: unix.RT_TABLE_MAIN, Protocol: Protocol})
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("cannot remove route %s: %w", r, err))
		}
	}
	for _, r := range d.Replace {
		errs = append(errs, t.set(r.New, t.handle.RouteReplace))
	}
	for _, r := range d.Add {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		errs = append(errs, t.set(r, t.handle.RouteAdd)) // create exclusively
	}
	return errors.Join(errs...)
}

func (t *table) set(r Route, call func(*netlink.Route) error) error {
	route := &netlink.Route{Dst: ipNet(r.Dst), Gw: ip(r.Via), Src: ip(r.Src), Table: unix.RT_TABLE_MAIN, Protocol: Protocol}
	if r.Via != r.Peer && r.Peer.IsValid() {
		// The kernel cannot find the interface of a next hop that is in none of its networks.
		way, err := t.handle.RouteGet(ip(r.Peer))
		if err != nil || len(way) == 0 {
			return fmt.Errorf("cannot add route %s to node %s: cannot find the interface towards %s: %w", r, r.Node, r.Peer, err)
		}
		route.LinkIndex, route.Flags = way[0].LinkIndex, int(netlink.FLAG_ONLINK)
	}
	switch err := call(route); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("cannot add route %s to node %s: no interface of this host is in the network of %s: %w", r, r.Node, r.Via, err)
	default:
		return fmt.Errorf("cannot add route %s to node %s: %w", r, r.Node, err)
	}
}

// Changes implements Table. The kernel drops the routes of an interface that goes down without saying so for each; therefore
// interfaces and addresses are listened to as well.
func (t *table) Changes(ctx context.Context) (<-chan struct{}, error) {
	done := ctx.Done()
	routes := make(chan netlink.RouteUpdate, 64)
	links := make(chan netlink.LinkUpdate, 64)
	err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{Namespace: &t.ns, ErrorCallback: func(error) {}})
	if err != nil {
		return nil, fmt.Errorf("cannot subscribe to route changes: %w", err)
	}
	err = netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{Namespace: &t.ns, ErrorCallback: func(error) {}})
	if err != nil {
		go drain(routes)
		return nil, fmt.Errorf("cannot subscribe to interface changes: %w", err)
	}
	hints := make(chan struct{}, 1)
	go func() {
		defer close(hints)
		for routes != nil || links != nil {
			hint := false
			select {
			case u, ok := <-routes:
				if !ok {
					routes = nil
				}
				hint = ok && u.Type == unix.RTM_DELROUTE
			case _, ok := <-links:
				if !ok {
					links = nil
				}
				hint = ok
			}
			if hint {
				select {
				case hints <- struct{}{}:
				default:
				}
			}
		}
	}()
	return hints, nil
}

func drain(c <-chan netlink.RouteUpdate) {
	for range c {
	}
}

func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr(n.IP), bits)
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func ip(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
