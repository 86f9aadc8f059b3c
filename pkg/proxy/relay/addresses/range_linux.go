package addresses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/wake"
)

// localRanges make whole ranges of service addresses local with one route each instead of thousands of addresses: the
// more addresses an interface has, the longer the kernel takes for each.
//
//	local 10.96.0.0/12 dev lo table local proto 119 src <the node's address>
//
// The protocol marks them as ours, for the next proxy. Use it from one goroutine.
type localRanges struct {
	look bool // the host may have routes of ours
	said map[netip.Prefix]string
}

// setRanges records and returns the ranges that may be local as a whole, sorted.
func (a *netlinkAddresses) setRanges(ranges []netip.Prefix) (usable []netip.Prefix) {
	if a.own { // if the user names an interface, the addresses belong there
		for _, p := range ranges {
			if p.IsValid() && p.Bits() > 0 {
				usable = append(usable, p.Masked())
			}
		}
	}
	slices.SortFunc(usable, netip.Prefix.Compare)
	usable = slices.Compact(usable)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ranges = usable
	return usable
}

// inRange reports whether one of the ranges contains an address.
func inRange(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func isOurs(r *netlink.Route) bool {
	return r.Table == unix.RT_TABLE_LOCAL && r.Type == unix.RTN_LOCAL && r.Protocol == ownProtocol
}

// destination returns a route's destination; the zero value for a default route.
func destination(r *netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

// list returns our routes, and those of the ranges that can be local as a whole: no other program's route leads to a
// part of them. If one does, the Services' addresses are added one by one, and the rest stays unchanged.
func (l *localRanges) list(ranges []netip.Prefix) (have map[netip.Prefix]netlink.Route, usable []netip.Prefix, err error) {
	if len(ranges) == 0 && !l.look {
		return nil, nil, nil
	}
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list routes: %w", err)
	}
	have = map[netip.Prefix]netlink.Route{}
	taken := map[netip.Prefix]string{}
	for i := range all {
		r, to := &all[i], destination(&all[i])
		if isOurs(r) {
			have[to] = *r
		}
		if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST || !to.IsValid() {
			continue
		}
		for _, p := range ranges {
			if p.Contains(to.Addr()) && p.Bits() <= to.Bits() {
				taken[p] = to.String()
			}
		}
	}
	for _, p := range ranges {
		if by := taken[p]; by == "" {
			usable = append(usable, p)
		} else if l.said[p] != by {
			l.said[p] = by
			klog.InfoS("Adding service addresses one by one: another route covers part of their range", "range", p, "route", by)
		}
	}
	return have, usable, nil
}

// add makes the usable ranges local and returns those that are.
func (l *localRanges) add(have map[netip.Prefix]netlink.Route, usable []netip.Prefix) (done []netip.Prefix) {
	if len(usable) == 0 {
		return nil
	}
	loopback, missing := netlink.LinkByName("lo")
	for _, p := range usable {
		if _, ok := have[p]; ok {
			done = append(done, p)
			continue
		}
		err := missing
		if err == nil {
			l.look = true
			err = netlink.RouteReplace(&netlink.Route{LinkIndex: loopback.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: ownProtocol,
				Scope: scopeOf(p), Dst: ipNet(p), Src: nodeSource(p)})
		}
		if err == nil {
			done = append(done, p)
		} else if text := err.Error(); l.said[p] != text {
			l.said[p] = text
			klog.InfoS("Adding service addresses one by one: cannot make their range local", "range", p, "reason", text)
		}
	}
	return done
}

// remove removes our routes that are not in done.
func (l *localRanges) remove(have map[netip.Prefix]netlink.Route, done []netip.Prefix) error {
	var errs []error
	for p, r := range have {
		if slices.Contains(done, p) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("cannot remove the route of range %s: %w", p, err))
		}
	}
	l.look = len(done) > 0 || len(errs) > 0
	return errors.Join(errs...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func scopeOf(p netip.Prefix) netlink.Scope {
	if p.Addr().Is4() {
		return netlink.SCOPE_HOST
	}
	return netlink.SCOPE_UNIVERSE // IPv6 has no other scope
}

// nodeSource returns the source address of this host's own connections to a range, as they would have to a service
// elsewhere; nil: the kernel chooses, which gives the service's own address (IPv4) or loopback.
func nodeSource(p netip.Prefix) net.IP {
	family := "::"
	if p.Addr().Is4() {
		family = "0.0.0.0"
	}
	addrs, err := host.NodeAddress(family)
	if err != nil {
		return nil
	}
	for _, addr := range addrs {
		if addr.Is4() == p.Addr().Is4() && !p.Contains(addr) {
			return addr.AsSlice()
		}
	}
	return nil
}

// watchRoutes sends a hint when one of our routes is removed, or when another route into our ranges is added or
// removed.
func (a *netlinkAddresses) watchRoutes(ctx context.Context, hints wake.Signal) error {
	updates := make(chan netlink.RouteUpdate, 1024)
	if err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{ReceiveBufferSize: 1 << 20}); err != nil {
		return fmt.Errorf("cannot watch the host's routes: %w", err)
	}
	go func() { // ends with the subscription, soon after ctx
		for update := range updates {
			if update.Type == unix.RTM_DELROUTE && (update.Table == answerTable || a.ports.takenRoute(&update.Route)) {
				hints.Send()
			}
			to := destination(&update.Route)
			if isOurs(&update.Route) && update.Type == unix.RTM_NEWROUTE || update.Table == unix.RT_TABLE_LOCAL && !isOurs(&update.Route) || !to.IsValid() {
				continue
			}
			a.mu.Lock()
			concerned := slices.ContainsFunc(a.ranges, func(p netip.Prefix) bool { return p.Contains(to.Addr()) && p.Bits() <= to.Bits() })
			a.mu.Unlock()
			if concerned {
				hints.Send()
			}
		}
	}()
	return nil
}
