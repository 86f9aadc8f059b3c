package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// routingTable is the main routing table of one network namespace, accessed over netlink.
type routingTable struct {
	handle *netlink.Handle
	dumps  *nl.SocketHandle
	ns     netns.NsHandle

	mu      sync.Mutex
	tunnels map[int]bool // interface indexes, as last listed
	listed  int          // number of routes or entries of one kind in the last listing, to size the next one
}

// NewRoutingTable returns the routing table of the network namespace of the calling thread.
func NewRoutingTable() (RoutingTable, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("cannot open the network namespace: %w", err)
	}
	// Without CAP_SYS_ADMIN, as in a container, a thread may not even enter its own namespace. Then no thread has left that of the process.
	if errors.Is(netns.Set(ns), unix.EPERM) {
		if err := ns.Close(); err != nil {
			return nil, err
		}
		ns = netns.None()
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open netlink: %w", err), ns.Close())
	}
	socket, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, errors.Join(fmt.Errorf("cannot open netlink: %w", err), ns.Close())
	}
	return &routingTable{handle: h, dumps: &nl.SocketHandle{Socket: socket}, ns: ns}, nil
}

// List implements RoutingTable.
func (t *routingTable) List(context.Context) (Host, error) {
	t.mu.Lock()
	about := t.listed
	t.mu.Unlock()
	host := Host{Ours: make([]Route, 0, about)}
	names, err := t.listPeers(&host, about)
	if err != nil {
		return Host{}, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := t.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family)}}, func(m []byte) {
			r, ok := parseRoute(m, family)
			r.Device = names[r.link]
			switch {
			case !ok:
			case r.protocol == Protocol:
				host.Ours = append(host.Ours, r.Route)
			case r.metric == metric(family): // another program's route with that metric would collide; with any other metric it coexists with ours
				host.Foreign = append(host.Foreign, r.Route)
			}
		})
		if err != nil {
			return Host{}, fmt.Errorf("cannot list the main routing table: %w", err)
		}
	}
	addrs, err := t.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return Host{}, fmt.Errorf("cannot list addresses: %w", err)
	}
	t.mu.Lock()
	t.listed = len(host.Ours)
	t.mu.Unlock()
	for _, a := range addrs {
		if length, _ := a.Mask.Size(); network(netip.PrefixFrom(addr(a.IP), length)) {
			host.Networks = append(host.Networks, netip.PrefixFrom(addr(a.IP), length))
		}
		if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 { // the kernel refuses other addresses as a source
			host.Addrs = append(host.Addrs, addr(a.IP))
		}
	}
	return host, nil
}

// listPeers adds the entries of our tunnels to host and returns the tunnels' names by index.
func (t *routingTable) listPeers(host *Host, about int) (map[int]string, error) {
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
		forwards, err := t.entries(index, unix.AF_BRIDGE, about)
		if err != nil {
			return nil, fmt.Errorf("cannot list the forwarding entries of %s: %w", name, err)
		}
		neighbours, err := t.entries(index, family, about)
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

// entries lists the entries of one family on an interface.
func (t *routingTable) entries(index, family, about int) ([]entry, error) {
	out := make([]entry, 0, about)
	header := &netlink.Ndmsg{Family: uint8(family), Index: uint32(index)}
	err := t.dump(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, header, func(m []byte) {
		if e, ok := parseEntry(m, family); ok && e.link == index {
			out = append(out, e)
		}
	})
	return out, err
}

// peers joins both kinds of entries by hardware address.
func peers(device string, forwards, neighbours []entry) (out []Peer) {
	public := make(map[vxlan.MAC]netip.Addr, len(forwards))
	for _, f := range forwards {
		if f.addr.IsValid() {
			public[f.mac] = f.addr
		}
	}
	seen := make(map[vxlan.MAC]bool, len(neighbours))
	out = make([]Peer, 0, len(neighbours))
	for _, n := range neighbours {
		if !n.permanent || n.addr.IsMulticast() {
			continue
		}
		seen[n.mac] = true
		out = append(out, Peer{Device: device, Inner: n.addr, MAC: n.mac, Public: public[n.mac]})
	}
	for mac, p := range public {
		if !seen[mac] {
			out = append(out, Peer{Device: device, MAC: mac, Public: p})
		}
	}
	return out
}

// metric is the kernel's default metric of routes.
func metric(family int) int {
	if family == netlink.FAMILY_V6 {
		return 1024
	}
	return 0
}

// Change implements RoutingTable.
func (t *routingTable) Change(ctx context.Context, d Diff) error {
	var errs []error
	found := map[string]int{} // tunnels' indexes
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

func (t *routingTable) changePeers(ctx context.Context, d Diff, found map[string]int) error {
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

// entry adds or removes one entry of a tunnel; removing a missing entry is not an error.
func (t *routingTable) entry(what string, p Peer, n *netlink.Neigh, call func(*netlink.Neigh) error, found map[string]int) error {
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

// device returns the index of a tunnel and caches it in found.
func (t *routingTable) device(name string, found map[string]int) (index int, err error) {
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

func (t *routingTable) set(r Route, call func(*netlink.Route) error, found map[string]int) error {
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

// Changes implements RoutingTable. When an interface goes down, the kernel drops its routes without a message for each,
// so Changes subscribes to interfaces too. Changes to tunnel entries are reported one by one.
func (t *routingTable) Changes(ctx context.Context) (<-chan struct{}, error) {
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
	if err != nil { // the other subscriptions are read until they end
		cancel()
		err = fmt.Errorf("cannot subscribe to changes of routes: %w", err)
	}
	hints := wake.New()
	// listen ends when the kernel's subscriptions do, soon after ctx; then it closes hints.
	go t.listen(cancel, routes, links, entries, hints)
	return hints, err
}

// listen sends hints until all three channels are closed.
func (t *routingTable) listen(done func(), routes <-chan netlink.RouteUpdate, links <-chan netlink.LinkUpdate, entries <-chan netlink.NeighUpdate, hints wake.Signal) {
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
			hints.Send()
		}
	}
}

// tunnel reports whether an interface is one of our tunnels.
func (t *routingTable) tunnel(index int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tunnels[index]
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

// dump requests everything of one kind from the kernel and calls each with one message after another (rtnetlink(7)).
// Messages are parsed field by field: each change lists a thousand entries of three kinds, and the library would
// allocate objects for all fields.
func (t *routingTable) dump(ask int, answer uint16, header nl.NetlinkRequestData, each func(message []byte)) error {
	request := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: t.dumps}
	request.AddData(header)
	return request.ExecuteIter(unix.NETLINK_ROUTE, answer, func(message []byte) bool {
		each(message)
		return true
	})
}

// attributes iterates over the attributes after a message's header. A truncated attribute ends it.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK
			if size < unix.SizeofRtAttr || size > len(b) || !yield(kind, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min((size+3)&^3, len(b)):] // they are aligned to 4 bytes
		}
	}
}

// found is a route of the main table as the kernel reports it.
type found struct {
	Route            // Device unknown
	protocol, metric int
	link             int
}

// parseRoute parses an RTM_NEWROUTE message (struct rtmsg and attributes); false: it is not in the main table or not of
// the family.
func parseRoute(m []byte, family int) (r found, ok bool) {
	if len(m) < unix.SizeofRtMsg || int(m[0]) != family || m[4] != unix.RT_TABLE_MAIN || binary.NativeEndian.Uint32(m[8:])&unix.RTM_F_CLONED != 0 {
		return r, false
	}
	dst := netip.IPv4Unspecified() // a default route has no RTA_DST
	if family == netlink.FAMILY_V6 {
		dst = netip.IPv6Unspecified()
	}
	r.protocol = int(m[5])
	for kind, value := range attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			dst = addr(value)
		case unix.RTA_GATEWAY:
			r.Via = addr(value)
		case unix.RTA_PREFSRC:
			r.Src = addr(value)
		case unix.RTA_OIF:
			r.link = number(value)
		case unix.RTA_PRIORITY:
			r.metric = number(value)
		}
	}
	r.Dst = netip.PrefixFrom(dst, int(m[1]))
	return r, r.Dst.IsValid()
}

// entry is a neighbour entry or a forwarding entry of an interface.
type entry struct {
	link      int
	addr      netip.Addr // the neighbour's address, or the destination of frames; invalid: none
	mac       vxlan.MAC
	permanent bool
}

// parseEntry parses an RTM_NEWNEIGH message (struct ndmsg and attributes); false: another family, or not an Ethernet
// address.
func parseEntry(m []byte, family int) (e entry, ok bool) {
	if len(m) < unix.SizeofNdMsg || int(m[0]) != family {
		return e, false
	}
	e.link = number(m[4:8])
	e.permanent = binary.NativeEndian.Uint16(m[8:])&netlink.NUD_PERMANENT != 0
	for kind, value := range attributes(m[unix.SizeofNdMsg:]) {
		switch kind {
		case unix.NDA_DST:
			e.addr = addr(value)
		case unix.NDA_LLADDR:
			if ok = len(value) == len(e.mac); ok {
				e.mac = vxlan.MAC(value)
			}
		}
	}
	return e, ok
}

// number reads a 32-bit int; 0 if b is too short.
func number(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(b)))
}
