package addresses

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/wake"
)

// ownProtocol marks our addresses on an interface that is not ours (IFA_PROTO, Linux 5.18), so that after a proxy was
// killed the next one recognizes them. Our own dummy interface needs no mark.
const (
	ownProtocol = 0x77
	ifaProto    = 11 // IFA_PROTO of linux/if_addr.h
)

// netlinkAddresses sets service addresses on one interface through netlink.
type netlinkAddresses struct {
	name string
	own  bool // the interface is ours

	guard  *guard
	routes localRanges

	ports *portRules

	answers bool // the last Set led endpoints' replies to clients here
	leads   bool // the rule and the route for such replies may exist

	mu      sync.Mutex
	ranges  []netip.Prefix // of the cluster's Services, sorted
	ours    map[netip.Addr]bool
	leaving map[netip.Addr]bool // removed by us, but removal not yet seen
}

// New returns the Addresses of an interface, which must exist; "": our own dummy interface, OwnInterface. A hung nft
// blocks Set for 5 s, at most once in 30 s.
func New(name string) (relay.Addresses, error) {
	return NewWith(command.Patient(command.New(), nftPatience, nftPause), name)
}

// NewWith is New with a Runner for nft, which must not block for long.
func NewWith(run command.Runner, name string) (relay.Addresses, error) {
	a := &netlinkAddresses{name: name, guard: newGuard(run), ports: newPortRules(), routes: localRanges{look: true, said: map[netip.Prefix]string{}},
		ours: map[netip.Addr]bool{}, leaving: map[netip.Addr]bool{}}
	if name == "" || name == OwnInterface {
		a.name, a.own = OwnInterface, true
		return a, nil
	}
	if _, err := netlink.LinkByName(name); err != nil {
		return nil, fmt.Errorf("cannot find interface %s: %w", name, err)
	}
	return a, nil
}

// Set implements relay.Addresses: a route for each usable range, rules for single ports, and the interface for the
// rest. Nothing becomes local before it is guarded, and addresses stay local while one method replaces another.
func (a *netlinkAddresses) Set(ctx context.Context, local relay.Local) (answers bool, err error) {
	fronts, want := a.divide(local)
	wanted := len(want)+len(fronts) > 0
	ranges := a.setRanges(local.Ranges)
	if !wanted {
		ranges = nil
	}
	have, usable, err := a.routes.list(ranges)
	if err != nil {
		return a.answers, err
	}
	host, err := a.Host()
	if err != nil {
		return a.answers, err
	}
	outside := func(ranges []netip.Prefix) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(want), func(addr netip.Addr) bool { return inRange(ranges, addr) })
	}
	keep := local.Answers && wanted
	lead := keep || len(fronts) > 0
	unguarded := a.guard.set(ctx, guarded{ranges: usable, single: outside(usable), fronts: fronts, quiet: quiet(usable, host), quietSingle: a.own, keep: keep, errors: lead})
	var unled error
	if lead || a.leads || !wanted {
		unled = setAnswers(lead)
	}
	a.leads = lead || unled != nil
	a.answers = keep && unguarded == nil && unled == nil
	if errors.Is(unguarded, errNoGuard) {
		usable, unguarded = nil, nil
	}
	done := a.routes.add(have, usable)
	single := a.setSingle(outside(done))
	return a.answers, errors.Join(unguarded, unled, single, a.ports.set(fronts, host), a.routes.remove(have, done))
}

// divide returns the fronts whose ports can be made local alone, and addrs with the addresses of the others.
func (a *netlinkAddresses) divide(want relay.Local) (fronts []front, addrs []netip.Addr) {
	addrs = slices.Clone(want.Addresses)
	for _, p := range want.Ports {
		f := front(p)
		if a.ports.probe(f); a.ports.holds(f.Addr.Addr()) {
			fronts = append(fronts, f)
		} else {
			addrs = append(addrs, f.Addr.Addr())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return fronts, slices.Compact(addrs)
}

// quiet returns the ranges for which this host need not answer ARP: those in which it has no address.
func quiet(ranges []netip.Prefix, host []netip.Addr) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool { return slices.ContainsFunc(host, p.Contains) })
}

// HoldsPorts implements relay.Addresses. If the user names an interface, the addresses belong there.
func (a *netlinkAddresses) HoldsPorts(addr netip.Addr) bool { return a.own && a.ports.holds(addr) }

// LeadsAnswers implements relay.Addresses.
func (a *netlinkAddresses) LeadsAnswers() bool { return canLeadAnswers() }

// setSingle sets the addresses on the interface.
func (a *netlinkAddresses) setSingle(want []netip.Addr) error {
	link, err := a.link(len(want) > 0)
	if err != nil || link == nil {
		return err
	}
	if a.own && len(want) == 0 {
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("cannot remove interface %s: %w", a.name, err)
		}
		a.note(nil, nil)
		return nil
	}
	index := link.Attrs().Index
	have, err := listAddresses(index)
	if err != nil {
		return err
	}
	known := map[netip.Addr]bool{}
	for addr, protocol := range have {
		known[addr] = a.own && !addr.IsLinkLocalUnicast() || protocol == ownProtocol
	}
	add, remove := plan(known, want)
	a.note(want, remove)
	if len(add)+len(remove) == 0 {
		return nil
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE) // one for all changes: there may be thousands
	if err != nil {
		return fmt.Errorf("cannot change addresses: %w", err)
	}
	defer socket.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	change := func(operation int, addr netip.Addr) error {
		request := addressRequest(operation, index, addr)
		request.Sockets = sockets
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	}
	var errs []error
	for _, addr := range remove {
		if err := change(unix.RTM_DELADDR, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		}
	}
	for _, addr := range add {
		if err := change(unix.RTM_NEWADDR, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, &relay.AddressError{Addr: addr, Err: err})
		}
	}
	return errors.Join(errs...)
}

// note records our own changes of addresses.
func (a *netlinkAddresses) note(want, remove []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range remove {
		a.leaving[addr] = true
	}
	if len(want) == 0 {
		for addr := range a.ours {
			a.leaving[addr] = true
		}
	}
	a.ours = make(map[netip.Addr]bool, len(want))
	for _, addr := range want {
		a.ours[addr] = true
		delete(a.leaving, addr)
	}
}

// link finds the interface. It creates ours if needed; nil: ours does not exist and is not needed.
func (a *netlinkAddresses) link(needed bool) (netlink.Link, error) {
	link, err := netlink.LinkByName(a.name)
	var missing netlink.LinkNotFoundError
	if a.own && errors.As(err, &missing) {
		if !needed {
			return nil, nil
		}
		if err := makeInterface(a.name); err != nil {
			return nil, err
		}
		link, err = netlink.LinkByName(a.name)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find interface %s: %w", a.name, err)
	}
	if a.own && link.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("cannot bring interface %s up: %w", a.name, err)
		}
	}
	return link, nil
}

// makeInterface creates a dummy interface. On a kernel without that driver it creates an ifb, which acts as one while
// no traffic is mirrored to it.
func makeInterface(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs})
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("cannot make interface %s: this kernel has neither dummy nor ifb; set INTERFACE_TO_ADD_SERVICE_IP to an interface such as lo", name)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot make interface %s: %w", name, err)
	}
	return nil
}

// Host implements relay.Addresses.
func (a *netlinkAddresses) Host() ([]netip.Addr, error) {
	all, err := host.Addresses()
	if err != nil {
		return nil, err
	}
	ours := map[netip.Addr]bool{}
	if link, err := netlink.LinkByName(a.name); err == nil {
		have, err := listAddresses(link.Attrs().Index)
		if err != nil {
			return nil, err
		}
		for addr, protocol := range have {
			ours[addr] = a.own || protocol == ownProtocol
		}
	}
	var out []netip.Addr
	for _, addr := range all {
		if !ours[addr] {
			out = append(out, addr)
		}
	}
	return out, nil
}

// Changes implements relay.Addresses.
func (a *netlinkAddresses) Changes(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate, 1024)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return nil, fmt.Errorf("cannot watch the host's addresses: %w", err)
	}
	hints := wake.New()
	if err := errors.Join(a.watchRoutes(ctx, hints), watchGuard(ctx, a.ports, hints)); err != nil {
		return nil, err
	}
	go func() { // ends with the subscription, soon after ctx
		for update := range updates {
			addr, ok := netip.AddrFromSlice(update.LinkAddress.IP)
			if !ok || addr.IsLinkLocalUnicast() || a.expected(addr.Unmap(), update.NewAddr) {
				continue // nothing listens on link-local addresses, and the kernel adds them itself
			}
			hints.Send()
		}
	}()
	return hints, nil
}

// expected reports whether we caused a change of the host's addresses.
func (a *netlinkAddresses) expected(addr netip.Addr, added bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if added {
		return a.ours[addr]
	}
	expected := a.leaving[addr]
	delete(a.leaving, addr)
	return expected
}

// listAddresses returns the addresses of an interface with their origin (IFA_PROTO; 0 if the kernel does not report
// it).
func listAddresses(index int) (map[netip.Addr]byte, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	out := map[netip.Addr]byte{}
	for _, message := range messages {
		header := nl.DeserializeIfAddrmsg(message)
		if int(header.Index) != index {
			continue
		}
		attributes, err := nl.ParseRouteAttr(message[header.Len():])
		if err != nil {
			return nil, fmt.Errorf("cannot list addresses: %w", err)
		}
		addr, protocol := parseAddress(attributes)
		out[addr] = protocol
	}
	return out, nil
}

func parseAddress(attributes []syscall.NetlinkRouteAttr) (addr netip.Addr, protocol byte) {
	for _, attribute := range attributes {
		switch attribute.Attr.Type {
		case unix.IFA_LOCAL: // IPv4, where IFA_ADDRESS is the peer
			addr, _ = netip.AddrFromSlice(attribute.Value)
		case unix.IFA_ADDRESS:
			if !addr.IsValid() {
				addr, _ = netip.AddrFromSlice(attribute.Value)
			}
		case ifaProto:
			protocol = attribute.Value[0]
		}
	}
	return addr, protocol
}

// addressRequest adds or removes one address as a host route. The host never chooses it as a source address for its
// connections: scope host (IPv4), deprecated (IPv6).
func addressRequest(operation, index int, addr netip.Addr) *nl.NetlinkRequest {
	flags := unix.NLM_F_ACK
	if operation == unix.RTM_NEWADDR {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	request := nl.NewNetlinkRequest(operation, flags)
	message := nl.NewIfAddrmsg(unix.AF_INET6)
	if addr.Is4() {
		message.Family = unix.AF_INET
	}
	message.Index = uint32(index)
	message.Prefixlen = uint8(addr.BitLen())
	message.Scope = unix.RT_SCOPE_HOST
	message.IfAddrmsg.Flags = unix.IFA_F_NODAD
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.IFA_LOCAL, addr.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, addr.AsSlice()))
	request.AddData(nl.NewRtAttr(ifaProto, []byte{ownProtocol}))
	if operation == unix.RTM_NEWADDR && addr.Is6() {
		const forever = ^uint32(0)
		request.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, (&nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: forever}}).Serialize()))
	}
	return request
}
