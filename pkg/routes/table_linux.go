package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/vxlan"
)

// table is the main routing table of one network namespace, by netlink.
type table struct {
	handle *netlink.Handle
	ns     netns.NsHandle

	mu      sync.Mutex
	tunnels map[int]bool // interfaces, as last listed
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
	names, err := t.listPeers(&host)
	if err != nil {
		return Host{}, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := t.handle.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return Host{}, fmt.Errorf("cannot list the main routing table: %w", err)
		}
		host.Ours = slices.Grow(host.Ours, len(list))
		for _, r := range list {
			route := Route{Dst: prefix(r.Dst), Via: addr(r.Gw), Src: addr(r.Src), Device: names[r.LinkIndex]}
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

// listPeers adds the entries of our tunnels to host and returns the tunnels' names by index.
func (t *table) listPeers(host *Host) (map[int]string, error) {
	names, indices := map[int]string{}, map[int]bool{}
	for family, name := range map[int]string{netlink.FAMILY_V4: vxlan.DeviceName(true), netlink.FAMILY_V6: vxlan.DeviceName(false)} {
		link, err := t.handle.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot find interface %s: %w", name, err)
		}
		index := link.Attrs().Index
		names[index], indices[index] = name, true
		forwards, err := t.handle.NeighList(index, unix.AF_BRIDGE)
		if err != nil {
			return nil, fmt.Errorf("cannot list the forwarding entries of %s: %w", name, err)
		}
		neighbours, err := t.handle.NeighList(index, family)
		if err != nil {
			return nil, fmt.Errorf("cannot list the neighbours of %s: %w", name, err)
		}
		host.Peers = append(host.Peers, peers(name, forwards, neighbours)...)
	}
	t.mu.Lock()
	t.tunnels = indices
	t.mu.Unlock()
	return names, nil
}

// peers joins both kinds of entries by their hardware address.
func peers(device string, forwards, neighbours []netlink.Neigh) (out []Peer) {
	public := make(map[vxlan.MAC]netip.Addr, len(forwards))
	for _, f := range forwards {
		if len(f.HardwareAddr) == len(vxlan.MAC{}) && f.IP != nil {
			public[vxlan.MAC(f.HardwareAddr)] = addr(f.IP)
		}
	}
	seen := make(map[vxlan.MAC]bool, len(neighbours))
	out = make([]Peer, 0, len(neighbours))
	for _, n := range neighbours {
		if n.State&netlink.NUD_PERMANENT == 0 || len(n.HardwareAddr) != len(vxlan.MAC{}) || n.IP.IsMulticast() {
			continue
		}
		mac := vxlan.MAC(n.HardwareAddr)
		seen[mac] = true
		out = append(out, Peer{Device: device, Inner: addr(n.IP), MAC: mac, Public: public[mac]})
	}
	for mac, p := range public {
		if !seen[mac] {
			out = append(out, Peer{Device: device, MAC: mac, Public: p})
		}
	}
	return out
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
	found := map[string]int{} // tunnels
	for _, r := range d.Remove {
		err := t.handle.RouteDel(&netlink.Route{Dst: ipNet(r.Dst), Gw: ip(r.Via), Table: unix.RT_TABLE_MAIN, Protocol: Protocol})
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("cannot remove route %s: %w", r, err))
		}
	}
	errs = append(errs, t.changePeers(ctx, d, found))
	for _, r := range d.Replace {
		errs = append(errs, t.set(r.New, t.handle.RouteReplace, found))
	}
	for _, r := range d.Add {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		errs = append(errs, t.set(r, t.handle.RouteAdd, found)) // create exclusively
	}
	return errors.Join(errs...)
}

func (t *table) changePeers(ctx context.Context, d Diff, found map[string]int) error {
	var errs []error
	entry := func(what string, p Peer, n *netlink.Neigh, call func(*netlink.Neigh) error) {
		errs = append(errs, t.entry(what, p, n, call, found))
	}
	for _, p := range d.RemovePeers {
		if p.Inner.IsValid() {
			entry("remove the neighbour entry of", p, p.neighbour(), t.handle.NeighDel)
		}
		if p.Public.IsValid() {
			entry("remove the forwarding entry of", p, p.forward(), t.handle.NeighDel)
		}
	}
	for _, p := range d.SetPeers {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		entry("set the neighbour entry of", p, p.neighbour(), t.handle.NeighSet)
		entry("set the forwarding entry of", p, p.forward(), t.handle.NeighSet)
	}
	return errors.Join(errs...)
}

// entry makes or removes one entry of a tunnel; removing what is gone is no error.
func (t *table) entry(what string, p Peer, n *netlink.Neigh, call func(*netlink.Neigh) error, found map[string]int) error {
	link, err := t.device(p.Device, found)
	if err == nil {
		n.LinkIndex = link
		err = call(n)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot %s %s of node %s: %w", what, p, p.Node, err)
	}
	return nil
}

// device finds a tunnel, among found where it was looked for before.
func (t *table) device(name string, found map[string]int) (index int, err error) {
	if index, ok := found[name]; ok {
		return index, nil
	}
	link, err := t.handle.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("this host has no interface %s, which a kubelet with --network-mode=%s makes: %w", name, Overlay, err)
	}
	found[name] = link.Attrs().Index
	return found[name], nil
}

func (p Peer) neighbour() *netlink.Neigh {
	family := netlink.FAMILY_V4
	if p.Inner.Is6() {
		family = netlink.FAMILY_V6
	}
	return &netlink.Neigh{Family: family, State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: ip(p.Inner), HardwareAddr: p.MAC[:]}
}

func (p Peer) forward() *netlink.Neigh {
	return &netlink.Neigh{Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, IP: ip(p.Public), HardwareAddr: p.MAC[:]}
}

func (t *table) set(r Route, call func(*netlink.Route) error, found map[string]int) error {
	route := &netlink.Route{Dst: ipNet(r.Dst), Gw: ip(r.Via), Src: ip(r.Src), Table: unix.RT_TABLE_MAIN, Protocol: Protocol}
	if r.Device != "" {
		index, err := t.device(r.Device, found)
		if err != nil {
			return fmt.Errorf("cannot add route %s to node %s: %w", r, r.Node, err)
		}
		route.LinkIndex, route.Flags = index, int(netlink.FLAG_ONLINK)
	} else if r.Via != r.Peer && r.Peer.IsValid() {
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
// interfaces are listened to as well. Entries of tunnels tell for themselves.
func (t *table) Changes(ctx context.Context) (<-chan struct{}, error) {
	ctx, cancel := context.WithCancel(ctx)
	routes := make(chan netlink.RouteUpdate, 64)
	links := make(chan netlink.LinkUpdate, 64)
	entries := make(chan netlink.NeighUpdate, 64)
	ignore := func(error) {}
	err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{Namespace: &t.ns, ErrorCallback: ignore})
	if err != nil {
		close(routes)
	}
	if more := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{Namespace: &t.ns, ErrorCallback: ignore}); more != nil {
		close(links)
		err = errors.Join(err, more)
	}
	if more := netlink.NeighSubscribeWithOptions(entries, ctx.Done(), netlink.NeighSubscribeOptions{Namespace: &t.ns, ErrorCallback: ignore}); more != nil {
		close(entries)
		err = errors.Join(err, more)
	}
	if err != nil { // the others are read until they end
		cancel()
		err = fmt.Errorf("cannot subscribe to changes of routes: %w", err)
	}
	hints := make(chan struct{}, 1)
	go t.listen(cancel, routes, links, entries, hints)
	return hints, err
}

// listen hints until all three have ended.
func (t *table) listen(done func(), routes <-chan netlink.RouteUpdate, links <-chan netlink.LinkUpdate, entries <-chan netlink.NeighUpdate, hints chan<- struct{}) {
	defer done()
	defer close(hints)
	for routes != nil || links != nil || entries != nil {
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
		case u, ok := <-entries:
			if !ok {
				entries = nil
			}
			hint = ok && u.Type == unix.RTM_DELNEIGH && t.tunnel(u.LinkIndex)
		}
		if hint {
			select {
			case hints <- struct{}{}:
			default:
			}
		}
	}
}

// tunnel says whether an interface is one of ours.
func (t *table) tunnel(index int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tunnels[index]
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
