package addresses

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An endpoint's replies on a connection with its client's address are addressed to that client. They are marked if the
// kernel finds our socket for them, and marked packets are local:
//
//	nftables: socket transparent 1 meta mark set meta mark | 0x1000     ip rule fwmark 0x1000/0x1000 lookup 119     local default dev lo table 119
const (
	answerMark     = 0x1000
	answerTable    = ownProtocol
	answerPriority = 119 // of the rule: after that of local addresses, before those of routes
)

// canLeadAnswers reports whether this process may open connections from an address that is not this host's.
func canLeadAnswers() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) == nil
}

func answerRule(family int) *netlink.Rule {
	mask := uint32(answerMark)
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Mask, rule.Table, rule.Priority = family, answerMark, &mask, answerTable, answerPriority
	return rule
}

// setAnswers makes marked packets local, or reverts that. Idempotent.
func setAnswers(wanted bool) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleListFiltered(family, &netlink.Rule{Table: answerTable}, netlink.RT_FILTER_TABLE)
		if err != nil {
			continue // a host without this family needs no rule
		}
		if wanted {
			err = leadAnswers(family, len(rules) > 0)
		} else {
			err = leaveAnswers(family, rules)
		}
		if family == netlink.FAMILY_V4 || !errors.Is(err, unix.EOPNOTSUPP) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot route answers to clients' addresses back to this host: %w", err)
	}
	return nil
}

func leadAnswers(family int, ruled bool) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	all := ipNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	if family == netlink.FAMILY_V6 {
		all = ipNet(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: loopback.Attrs().Index, Table: answerTable, Type: unix.RTN_LOCAL, Protocol: ownProtocol,
		Scope: netlink.SCOPE_HOST, Dst: all}); err != nil || ruled {
		return err
	}
	return netlink.RuleAdd(answerRule(family))
}

func leaveAnswers(family int, rules []netlink.Rule) error {
	var errs []error
	for i := range rules {
		rules[i].Family = family
		errs = append(errs, netlink.RuleDel(&rules[i]))
	}
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: answerTable}, netlink.RT_FILTER_TABLE)
	for i := range routes {
		errs = append(errs, netlink.RouteDel(&routes[i]))
	}
	return errors.Join(append(errs, err)...)
}
