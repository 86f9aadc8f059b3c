package relay

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
)

// guardTable is the nftables table of ours.
const guardTable = "winkube-proxy"

// The relay waits for nft: a hung one may hold that up, and what it serves, for nftPatience once in nftPause.
const (
	nftPatience = 5 * time.Second
	nftPause    = 30 * time.Second
)

// errNoGuard says that this host cannot keep its programs from answering at service addresses.
var errNoGuard = errors.New("nftables cannot look up sockets here")

// guard keeps programs that listen on every address of the host (0.0.0.0, ::) from answering at service addresses: a service answers at its own
// ports only, and an address of no service not at all. The rules ask the kernel for the socket that a new connection or a packet would reach,
// so their number does not depend on that of services. It is for one goroutine.
type guard struct {
	run        command.Runner
	generation func() (uint32, error)
	works      bool           // it has been written
	useless    bool           // it cannot be
	ranges     []netip.Prefix // as written last
	single     []netip.Addr
	answers    bool
	written    uint32 // the ruleset's generation then; any later one means that somebody has changed something
}

func newGuard(run command.Runner) *guard { return &guard{run: run, generation: rulesetGeneration} }

// set protects the ranges and the single addresses beside them; nothing of either removes every trace. answers: what endpoints send to clients whose
// address a socket of ours has is marked. errNoGuard: it never will.
func (g *guard) set(ctx context.Context, ranges []netip.Prefix, single []netip.Addr, answers bool) error {
	if g.useless {
		return errNoGuard
	}
	now, err := g.generation()
	untouched := err == nil && g.written != 0 && now == g.written && slices.Equal(ranges, g.ranges) && answers == g.answers
	switch {
	case untouched && slices.Equal(single, g.single):
		return nil
	case untouched:
		err = g.nft(ctx, guardChange(g.single, single))
	default:
		err = g.nft(ctx, guardScript(ranges, single, answers))
	}
	if err != nil {
		g.written = 0 // write everything the next time
		if !g.works && !errors.Is(err, command.ErrHung) {
			g.useless = true
			klog.InfoS("Programs that listen on all addresses of this host are reached at service addresses too: nftables cannot prevent it here", "reason", err)
			return errNoGuard
		}
		return fmt.Errorf("cannot guard service addresses: %w", err)
	}
	g.works = true
	g.ranges, g.single, g.answers = slices.Clone(ranges), slices.Clone(single), answers
	if g.written, err = g.generation(); err != nil {
		g.written = 1 // no generation of a ruleset that was written to
	}
	return nil
}

func (g *guard) nft(ctx context.Context, script string) error {
	_, err := g.run.Run(ctx, []byte(script), "nft", "-f", "-")
	return err
}

// guardScript replaces the table at once; nft needs it to exist to delete it.
func guardScript(ranges []netip.Prefix, single []netip.Addr, answers bool) string {
	var s strings.Builder
	fmt.Fprintf(&s, "add table inet %s\ndelete table inet %s\n", guardTable, guardTable)
	if len(ranges)+len(single) == 0 {
		return s.String()
	}
	fmt.Fprintf(&s, "table inet %s {\n", guardTable)
	for _, family := range []struct {
		name, kind string
		is4        bool
	}{{"4", "ipv4_addr", true}, {"6", "ipv6_addr", false}} {
		of := func(a netip.Addr) bool { return a.Is4() == family.is4 }
		set(&s, "ranges"+family.name, family.kind+"; flags interval; auto-merge", texts(ranges, func(p netip.Prefix) bool { return of(p.Addr()) }))
		set(&s, "addresses"+family.name, family.kind, texts(single, of))
	}
	if answers {
		fmt.Fprintf(&s, `	chain answers {
		type filter hook prerouting priority mangle; policy accept;
		iifname != "lo" meta l4proto { tcp, udp } socket transparent 1 meta mark set meta mark | %#x
	}
`, answerMark)
	}
	fmt.Fprint(&s, `	chain input {
		type filter hook input priority filter - 5; policy accept;
		tcp flags & (fin | syn | rst | ack) != syn accept
		ip daddr @ranges4 jump service
		ip daddr @addresses4 jump service
		ip6 daddr @ranges6 jump service
		ip6 daddr @addresses6 jump service
	}
	chain service {
		meta l4proto tcp socket wildcard 1 reject with tcp reset
		meta l4proto udp socket wildcard 1 reject
	}
}
`)
	return s.String()
}

func set(s *strings.Builder, name, kind string, elements []string) {
	fmt.Fprintf(s, "\tset %s { type %s; ", name, kind)
	if len(elements) > 0 {
		fmt.Fprintf(s, "elements = { %s }; ", strings.Join(elements, ", "))
	}
	fmt.Fprint(s, "}\n")
}

// texts are the elements of a list that are wanted.
func texts[T fmt.Stringer](list []T, wanted func(T) bool) (out []string) {
	for _, one := range list {
		if wanted(one) {
			out = append(out, one.String())
		}
	}
	return out
}

// guardChange brings the single addresses from one sorted list to another.
func guardChange(from, to []netip.Addr) string {
	var s strings.Builder
	line := func(verb string, addr netip.Addr) {
		name := "addresses6"
		if addr.Is4() {
			name = "addresses4"
		}
		fmt.Fprintf(&s, "%s element inet %s %s { %s }\n", verb, guardTable, name, addr)
	}
	for len(from)+len(to) > 0 {
		order := 0
		switch {
		case len(to) == 0:
			order = -1
		case len(from) == 0:
			order = 1
		default:
			order = from[0].Compare(to[0])
		}
		if order < 0 {
			line("delete", from[0])
		} else if order > 0 {
			line("add", to[0])
		}
		if order <= 0 {
			from = from[1:]
		}
		if order >= 0 {
			to = to[1:]
		}
	}
	return s.String()
}

// rulesetGeneration counts the changes of this network namespace's nftables.
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
	return 0, errors.New("cannot read the generation of nftables: the kernel does not say")
}

// watchGuard calls hint when the table of rules, or a part of it, or a rule that leads answers back, is taken away. What a transaction of our own
// replaces counts too: the comparison that follows finds nothing to do.
func watchGuard(ctx context.Context, hint func()) error {
	const nftables, rules4, rules6 = 7, 8, 19 // NFNLGRP_NFTABLES, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE
	for protocol, groups := range map[int][]uint{unix.NETLINK_NETFILTER: {nftables}, unix.NETLINK_ROUTE: {rules4, rules6}} {
		socket, err := nl.Subscribe(protocol, groups...)
		if err != nil {
			return fmt.Errorf("cannot watch the host's rules: %w", err)
		}
		context.AfterFunc(ctx, socket.Close)
		go func() {
			for {
				messages, _, err := socket.Receive()
				if ctx.Err() != nil {
					return
				}
				// An error says that there was more than the socket holds: something may have been ours.
				if err != nil || slices.ContainsFunc(messages, takesRule) {
					hint()
				}
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					klog.ErrorS(err, "Cannot watch the host's rules any more: what is taken away comes back when everything is compared")
					return
				}
			}
		}()
	}
	return nil
}

// takesRule says whether a message of the kernel tells of the end of a rule that may be ours.
func takesRule(m syscall.NetlinkMessage) bool {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	switch m.Header.Type {
	case unix.RTM_DELRULE:
		return true
	case subsystem | unix.NFT_MSG_DELTABLE, subsystem | unix.NFT_MSG_DELCHAIN, subsystem | unix.NFT_MSG_DELRULE:
	default:
		return false
	}
	if len(m.Data) < nl.SizeofNfgenmsg {
		return false
	}
	attributes, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	return err == nil && slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.NFTA_TABLE_NAME && string(bytes.TrimRight(a.Value, "\x00")) == guardTable // the first attribute of each of them
	})
}
