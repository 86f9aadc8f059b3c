package addresses

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/wake"
)

// guardTable is the name of our nftables tables.
const guardTable = "winkube-proxy"

// The relay waits for nft: a hung one can delay it, and what it serves, for nftPatience once in nftPause.
const (
	nftPatience = 5 * time.Second
	nftPause    = 30 * time.Second
)

// errNoGuard says that this host cannot stop its programs from answering at service addresses.
var errNoGuard = errors.New("nftables cannot look up sockets here")

// front is a relay.Port that is local without the rest of its address.
type front relay.Port

func (f front) compare(o front) int { return relay.Port(f).Compare(relay.Port(o)) }

// String formats the front as an element of nftables sets: 203.0.113.9 . tcp . 80.
func (f front) String() string {
	return fmt.Sprintf("%s . %s . %d", f.Addr.Addr(), strings.ToLower(string(f.Protocol)), f.Addr.Port())
}

// guarded is the input of the rules.
type guarded struct {
	ranges []netip.Prefix
	single []netip.Addr // outside the ranges, sorted
	fronts []front      // single ports of addresses that are not local, sorted
	quiet  []netip.Prefix
	// This host does not answer ARP for quiet (of the ranges) and, with quietSingle, for single.
	quietSingle bool
	keep        bool // mark packets from endpoints to clients whose address one of our sockets uses
	errors      bool // also mark ICMP errors about connections of sockets whose address is not local
}

func (g *guarded) empty() bool { return len(g.ranges)+len(g.single)+len(g.fronts) == 0 }

// changes reports whether g and o differ only in sets that can be updated separately.
func (g *guarded) changes(o *guarded) bool {
	return slices.Equal(g.ranges, o.ranges) && slices.Equal(g.quiet, o.quiet) && g.quietSingle == o.quietSingle && g.keep == o.keep && g.errors == o.errors && !g.empty() && !o.empty()
}

// guard stops programs that listen on every address of the host (0.0.0.0, ::) from answering at service addresses: a
// Service answers only at its own ports, and an address of no Service not at all. The rules ask the kernel for the
// socket that a new connection or a packet would reach, so their number does not depend on the number of Services. It
// also stops the host from answering ARP for these addresses. Use it from one goroutine.
type guard struct {
	run        command.Runner
	generation func() (uint32, error)
	parts      guardParts
	works      bool // was written successfully before
	useless    bool // cannot work on this host
	last       guarded
	written    uint32 // the ruleset's generation after that; a later one means that another program has changed something
}

// guardParts are the table families that this host's nftables support.
type guardParts struct{ inet, arp bool }

func newGuard(run command.Runner) *guard {
	return &guard{run: run, generation: rulesetGeneration, parts: guardParts{inet: true, arp: true}}
}

// set protects want; an empty want removes all rules. errNoGuard: this host can never do it.
func (g *guard) set(ctx context.Context, want guarded) error {
	if g.useless {
		return errNoGuard
	}
	now, err := g.generation()
	untouched := err == nil && g.written != 0 && now == g.written
	switch {
	case untouched && g.last.changes(&want):
		change := guardChange(&g.last, &want, g.parts)
		if change == "" {
			return g.ready()
		}
		err = g.nft(ctx, change)
	case untouched && g.last.empty() && want.empty():
		return g.ready()
	default:
		err = g.write(ctx, &want)
	}
	if err != nil {
		g.written = 0 // write everything next time
		if g.useless {
			return errNoGuard
		}
		return fmt.Errorf("cannot guard service addresses: %w", err)
	}
	g.works, g.last = true, want
	if g.written, err = g.generation(); err != nil {
		g.written = 1 // never the generation of a ruleset after a write
	}
	return g.ready()
}

func (g *guard) ready() error {
	if !g.parts.inet {
		return errNoGuard
	}
	return nil
}

// write replaces all tables. The first time, it finds out what this host's nftables support.
func (g *guard) write(ctx context.Context, want *guarded) error {
	err := g.nft(ctx, guardScript(want, g.parts))
	if err == nil || g.works || errors.Is(err, command.ErrHung) { // one hang does not show what nft supports
		return err
	}
	var parts error
	for _, g.parts = range []guardParts{{inet: true}, {arp: true}} {
		if parts = g.nft(ctx, guardScript(want, g.parts)); parts == nil {
			break
		}
	}
	if errors.Is(parts, command.ErrHung) {
		g.parts = guardParts{inet: true, arp: true}
		return parts
	}
	if !g.parts.inet || parts != nil {
		klog.InfoS("Cannot use nftables: programs that listen on all addresses of this host answer at service addresses too", "reason", err)
	} else {
		klog.InfoS("Cannot use the arp family of nftables: this host answers ARP requests for service addresses", "reason", err)
	}
	g.useless = parts != nil
	return parts
}

func (g *guard) nft(ctx context.Context, script string) error {
	_, err := g.run.Run(ctx, []byte(script), "nft", "-f", "-")
	return err
}

// guardScript replaces the tables in one transaction; nft can delete only tables that exist.
func guardScript(want *guarded, parts guardParts) string {
	var s strings.Builder
	for _, family := range []struct {
		name  string
		there bool
		write func(*strings.Builder, *guarded)
	}{{"inet", parts.inet, guardInet}, {"arp", parts.arp, guardARP}} {
		if !family.there {
			continue
		}
		fmt.Fprintf(&s, "add table %s %s\ndelete table %s %s\n", family.name, guardTable, family.name, guardTable)
		if !want.empty() {
			family.write(&s, want)
		}
	}
	return s.String()
}

// guardInet writes the rules. At a single port, packets with any socket pass, including a closed one that waits
// (TIME_WAIT), which a client may reuse: such a socket matches neither wildcard 0 nor 1, but it is transparent or not.
func guardInet(s *strings.Builder, want *guarded) {
	fmt.Fprintf(s, "table inet %s {\n", guardTable)
	for _, family := range []struct {
		name, kind string
		is4        bool
	}{{"4", "ipv4_addr", true}, {"6", "ipv6_addr", false}} {
		of := func(a netip.Addr) bool { return a.Is4() == family.is4 }
		set(s, "ranges"+family.name, family.kind+"; flags interval; auto-merge", texts(want.ranges, func(p netip.Prefix) bool { return of(p.Addr()) }))
		set(s, "addresses"+family.name, family.kind, texts(want.single, of))
		set(s, "fronts"+family.name, family.kind+" . inet_proto . inet_service", texts(want.fronts, func(f front) bool { return of(f.Addr.Addr()) }))
	}
	if want.keep || want.errors {
		fmt.Fprint(s, "\tchain answers {\n\t\ttype filter hook prerouting priority mangle; policy accept;\n")
		if want.keep {
			fmt.Fprintf(s, `		ip daddr . meta l4proto . th dport @fronts4 accept
		ip6 daddr . meta l4proto . th dport @fronts6 accept
		iifname != "lo" meta l4proto { tcp, udp } socket transparent 1 meta mark set meta mark | %#x
`, answerMark)
		}
		fmt.Fprintf(s, `		iifname != "lo" icmp type { destination-unreachable, time-exceeded, parameter-problem } socket transparent 1 meta mark set meta mark | %#[1]x
		iifname != "lo" icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } socket transparent 1 meta mark set meta mark | %#[1]x
	}
`, answerMark)
	}
	fmt.Fprint(s, `	chain input {
		type filter hook input priority filter - 5; policy accept;
		tcp flags & (fin | syn | rst | ack) != syn accept
		ip daddr @ranges4 jump service
		ip daddr @addresses4 jump service
		ip daddr . meta l4proto . th dport @fronts4 jump front
		ip6 daddr @ranges6 jump service
		ip6 daddr @addresses6 jump service
		ip6 daddr . meta l4proto . th dport @fronts6 jump front
	}
	chain service {
		meta l4proto tcp socket wildcard 1 reject with tcp reset
		meta l4proto udp socket wildcard 1 reject
	}
	chain front {
		jump service
		meta l4proto { tcp, udp } socket transparent 0 return
		meta l4proto { tcp, udp } socket transparent 1 return
		meta l4proto tcp reject with tcp reset
		meta l4proto udp reject
	}
}
`)
}

// guardARP stops this host from answering ARP requests for an address that is local on every node.
func guardARP(s *strings.Builder, want *guarded) {
	is4 := func(a netip.Addr) bool { return want.quietSingle && a.Is4() }
	fmt.Fprintf(s, "table arp %s {\n", guardTable)
	set(s, "ranges4", "ipv4_addr; flags interval; auto-merge", texts(want.quiet, func(p netip.Prefix) bool { return p.Addr().Is4() }))
	set(s, "addresses4", "ipv4_addr", texts(want.single, is4))
	fmt.Fprint(s, `	chain input {
		type filter hook input priority filter; policy accept;
		arp operation request arp daddr ip @ranges4 drop
		arp operation request arp daddr ip @addresses4 drop
	}
}
`)
}

func set(s *strings.Builder, name, kind string, elements []string) {
	fmt.Fprintf(s, "\tset %s { type %s; ", name, kind)
	if len(elements) > 0 {
		fmt.Fprintf(s, "elements = { %s }; ", strings.Join(elements, ", "))
	}
	fmt.Fprint(s, "}\n")
}

// texts formats the wanted elements of a list.
func texts[T fmt.Stringer](list []T, wanted func(T) bool) (out []string) {
	for _, one := range list {
		if wanted(one) {
			out = append(out, one.String())
		}
	}
	return out
}

// guardChange returns the changes of the sets of single addresses and of fronts.
func guardChange(from, to *guarded, parts guardParts) string {
	var s strings.Builder
	line := func(family, verb, set string, addr netip.Addr, element fmt.Stringer) {
		version := 6
		if addr.Is4() {
			version = 4
		}
		fmt.Fprintf(&s, "%s element %s %s %s%d { %s }\n", verb, family, guardTable, set, version, element)
	}
	difference(from.single, to.single, netip.Addr.Compare, func(verb string, addr netip.Addr) {
		if parts.inet {
			line("inet", verb, "addresses", addr, addr)
		}
		if parts.arp && to.quietSingle && addr.Is4() {
			line("arp", verb, "addresses", addr, addr)
		}
	})
	difference(from.fronts, to.fronts, front.compare, func(verb string, f front) {
		if parts.inet {
			line("inet", verb, "fronts", f.Addr.Addr(), f)
		}
	})
	return s.String()
}

// difference calls change for each element to remove from or add to a sorted list to get another.
func difference[T any](from, to []T, compare func(a, b T) int, change func(verb string, one T)) {
	for len(from)+len(to) > 0 {
		order := 0
		switch {
		case len(to) == 0:
			order = -1
		case len(from) == 0:
			order = 1
		default:
			order = compare(from[0], to[0])
		}
		if order < 0 {
			change("delete", from[0])
		} else if order > 0 {
			change("add", to[0])
		}
		if order <= 0 {
			from = from[1:]
		}
		if order >= 0 {
			to = to[1:]
		}
	}
}

// rulesetGeneration returns the generation of this network namespace's nftables, which counts changes.
func rulesetGeneration() (uint32, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	request := nl.NewNetlinkRequest(subsystem|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, subsystem|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("cannot read the generation of nftables: %w", err)
	}
	for _, message := range messages {
		attributes, err := nl.ParseRouteAttr(message[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("cannot read the generation of nftables: %w", err)
		}
		for _, attribute := range attributes {
			if attribute.Attr.Type == unix.NFTA_GEN_ID && len(attribute.Value) == 4 {
				return binary.BigEndian.Uint32(attribute.Value), nil
			}
		}
	}
	return 0, errors.New("cannot read the generation of nftables: the kernel's answer lacks it")
}

// watchGuard sends a hint when a table, chain or rule of ours, or a routing rule to our tables, is removed. It also
// does so for our own transactions: the comparison that follows then finds nothing to do.
func watchGuard(ctx context.Context, ports *portRules, hints wake.Signal) error {
	const nftables, rules4, rules6 = 7, 8, 19 // NFNLGRP_NFTABLES, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE
	for protocol, groups := range map[int][]uint{unix.NETLINK_NETFILTER: {nftables}, unix.NETLINK_ROUTE: {rules4, rules6}} {
		socket, err := nl.Subscribe(protocol, groups...)
		if err != nil {
			return fmt.Errorf("cannot watch the host's rules: %w", err)
		}
		context.AfterFunc(ctx, socket.Close)
		go func() { // ends with the socket, soon after ctx
			for {
				messages, _, err := socket.Receive()
				if ctx.Err() != nil {
					return
				}
				// After an error, messages were lost: one may have been about our rules.
				if err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return takesRule(m, ports) }) {
					hints.Send()
				}
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					klog.ErrorS(err, "Cannot watch the host's packet filter rules any more; restoring removed rules only with the next full comparison")
					return
				}
			}
		}()
	}
	return nil
}

// takesRule reports whether a kernel message reports the removal of a rule that may be ours.
func takesRule(m syscall.NetlinkMessage, ports *portRules) bool {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	switch m.Header.Type {
	case unix.RTM_DELRULE:
		return ports.takenRule(m.Data)
	case subsystem | unix.NFT_MSG_DELTABLE, subsystem | unix.NFT_MSG_DELCHAIN, subsystem | unix.NFT_MSG_DELRULE:
	default:
		return false
	}
	if len(m.Data) < nl.SizeofNfgenmsg {
		return false
	}
	attributes, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	return err == nil && slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.NFTA_TABLE_NAME && string(bytes.TrimRight(a.Value, "\x00")) == guardTable // the first attribute of each such message
	})
}
