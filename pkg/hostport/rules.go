package hostport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/proxy"
)

// Chains of the table nat.
const (
	rulesPrefix = "WINKUBE-HOSTPORT"
	portsChain  = rulesPrefix           // hostPorts with a hostIP, and the way to nodeChain
	nodeChain   = rulesPrefix + "-NODE" // hostPorts without a hostIP
	leaveChain  = rulesPrefix + "-LEAVE"
)

// leaveBit of a connection's mark says that the pod must see an address of this host: the client is on the pod's bridge, so
// that answers would reach it without passing the packet filter. The proxy's rules for SCTP use the three bits below.
const leaveBit = 0x8000000

// Rules are packet filter rules of Linux that lead clients to hostPorts while the Manager's sockets hold them: pods see their
// clients' addresses, and no client notices the agent's death. Sockets still serve loopback, and a port that another program
// holds gets no rule. Use Rules from one goroutine.
type Rules struct {
	cfg      RulesConfig
	doors    []netip.Addr
	families [2]*ruleFamily
}

// RulesConfig is the configuration of Rules.
type RulesConfig struct {
	Run command.Runner
	// Bridge is the network interface that leads to the pods; "": no hostPort gets rules, and existing ones are removed.
	Bridge string
	// Doors returns the host's addresses at which a hostPort without hostIP is served. Loopback addresses need no rule.
	Doors func() ([]netip.Addr, error)
	// Forget deletes the UDP flows that clients of a port have with a pod from the kernel's table.
	Forget func(port uint16, with netip.Addr) error
}

type ruleFamily struct {
	four    bool
	keeper  *iptables.Keeper
	applied []proxy.Route // UDP: the flows of those that are gone are deleted
}

// NewRules returns Rules that have not changed the host.
func NewRules(cfg RulesConfig) *Rules {
	return &Rules{cfg: cfg, families: [2]*ruleFamily{
		{four: true, keeper: iptables.NewKeeper(cfg.Run, "iptables", rulesPrefix, "nat")},
		{keeper: iptables.NewKeeper(cfg.Run, "ip6tables", rulesPrefix, "nat")},
	}}
}

// Serve reports whether hostPorts get rules. A nil Rules has none.
func (r *Rules) Serve() bool { return r != nil && r.cfg.Bridge != "" }

// Set makes the rules lead to exactly routes. It returns what could not be written, by family; those rules are compared
// with the host's next time. With compare it always compares, otherwise only after a change.
func (r *Rules) Set(ctx context.Context, routes []proxy.Route, compare bool) error {
	var errs []error
	if r.Serve() && len(routes) > 0 {
		doors, err := r.cfg.Doors()
		if err != nil {
			return fmt.Errorf("addresses of this host: %w", err)
		}
		r.doors = doors
	}
	for _, f := range r.families {
		var mine []proxy.Route
		for _, route := range routes {
			if r.Serve() && route.Front.Addr().Is4() == f.four && route.Backends[0].Addr.Addr().Is4() == f.four {
				mine = append(mine, route)
			}
		}
		if _, err := f.keeper.Set(ctx, rulesOf(mine, r.doors, r.cfg.Bridge, f.four), compare); err != nil {
			if len(mine) > 0 || f.keeper.Holds() {
				errs = append(errs, fmt.Errorf("packet filter rules of %s for hostPorts: %s", f.name(), strings.Join(strings.Fields(err.Error()), " ")))
			}
			continue
		}
		errs = append(errs, r.forget(f, mine))
	}
	return errors.Join(errs...)
}

func (f *ruleFamily) name() string { return map[bool]string{true: "IPv4", false: "IPv6"}[f.four] }

// forget deletes flows to pods that have lost a port: a client that keeps sending would keep its flow.
func (r *Rules) forget(f *ruleFamily, now []proxy.Route) error {
	var errs []error
	var left []proxy.Route
	for _, before := range f.applied {
		if before.Protocol != v1.ProtocolUDP || slices.ContainsFunc(now, func(n proxy.Route) bool { return n.Equal(&before) }) {
			continue
		}
		if err := r.cfg.Forget(before.Front.Port(), before.Backends[0].Addr.Addr()); err != nil {
			errs, left = append(errs, err), append(left, before)
		}
	}
	f.applied = append(slices.Clone(now), left...)
	return errors.Join(errs...)
}

// rulesOf returns the rules for routes of one family. It is pure.
func rulesOf(routes []proxy.Route, doors []netip.Addr, bridge string, four bool) iptables.Set {
	var ports, node []string
	for _, route := range routes {
		at, to := route.Front, &ports
		if at.Addr().IsLoopback() {
			continue
		}
		match := ""
		if at.Addr().IsUnspecified() {
			to = &node
		} else {
			match = "-d " + single(at.Addr()) + " "
		}
		protocol := strings.ToLower(string(route.Protocol))
		match += fmt.Sprintf("-p %s -m %s --dport %d", protocol, protocol, at.Port())
		// iptables prints the interface after the addresses and before the protocol.
		marked := strings.Replace(match, "-p ", "-i "+bridge+" -p ", 1)
		*to = append(*to,
			fmt.Sprintf("%s -j CONNMARK --set-xmark %#x/%#x", marked, leaveBit, leaveBit),
			fmt.Sprintf("%s -j DNAT --to-destination %s", match, route.Backends[0].Addr))
	}
	if len(ports)+len(node) == 0 {
		return iptables.Set{}
	}
	if four { // the kernel drops what leaves with such an address; the socket serves it
		ports = slices.Insert(ports, 0, "-s 127.0.0.0/8 -j RETURN")
	} else {
		ports = slices.Insert(ports, 0, "-s ::1/128 -j RETURN")
	}
	for _, addr := range doors {
		if addr.Is4() == four && !addr.IsLoopback() && len(node) > 0 {
			ports = append(ports, "-d "+single(addr)+" -j "+nodeChain)
		}
	}
	set := iptables.Set{Chains: []iptables.Chain{
		{Table: "nat", Name: portsChain, Rules: ports},
		{Table: "nat", Name: leaveChain, Rules: []string{fmt.Sprintf("-o %s -m connmark --mark %#x/%#x -j MASQUERADE", bridge, leaveBit, leaveBit)}},
		{Table: "nat", Name: nodeChain, Rules: node},
	}}
	const local = "-m addrtype --dst-type LOCAL"
	for _, j := range []iptables.Jump{
		{Base: "PREROUTING", To: portsChain, Match: local}, {Base: "OUTPUT", To: portsChain, Match: local}, {Base: "POSTROUTING", To: leaveChain},
	} {
		j.Table, j.Before = "nat", iptables.OfOthers
		set.Jumps = append(set.Jumps, j)
	}
	return set
}

func single(addr netip.Addr) string { return netip.PrefixFrom(addr, addr.BitLen()).String() }
