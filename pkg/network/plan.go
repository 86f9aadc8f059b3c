package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
)

// mode is the implementation of one Mode on one system.
type mode struct {
	name Mode
	os   string // "linux" or "windows"; "": both
	// plan derives the State. It is pure: it must not read anything but its arguments.
	plan func(Config, Facts) (State, error)
	// maker returns the Maker of that State. It must not touch the host yet.
	maker func(shared) Maker
	// ranges says that plan needs the ranges of Services: the Manager waits until they are learned, since a network in use is not changed.
	ranges bool
	// factless says that plan needs no Facts: the Manager does not wait for the Node and reads no interfaces.
	factless bool
}

// modes are all modes, in the order in which an error lists them.
var modes = []mode{
	{name: HostGateway, os: "linux", plan: planBridge, maker: newLinux},
	{name: HostGateway, os: "windows", plan: planSwitch, maker: newSwitch, ranges: true},
	{name: Upstream, os: "linux", plan: planBridge, maker: newLinux},
	{name: Upstream, os: "windows", plan: planSwitch, maker: newSwitch, ranges: true},
	{name: Overlay, os: "linux", plan: planTunnels, maker: newLinux},
	{name: Overlay, os: "windows", plan: planOverlay, maker: newOverlay, ranges: true},
	{name: External, plan: planExternal, maker: newExternal, factless: true},
	{name: CNI, plan: planPlugins, maker: newPlugins},
}

// modeOf finds the mode that cfg names.
func modeOf(cfg Config) (mode, error) {
	windows := cfg.Platform.OS == "windows"
	var names []string
	for _, m := range modes {
		if m.name == cfg.Mode && (m.os == "" || windows == (m.os == "windows")) {
			return m, nil
		}
		if name := string(m.name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	last := len(names) - 1
	return mode{}, fmt.Errorf("network mode %q is not known; want %s or %s", cfg.Mode, strings.Join(names[:last], ", "), names[last])
}

// Plan plans the node's pod network. It is pure. Invalid input is an error; missing input gives a State that is not Ready.
func Plan(cfg Config, facts Facts) (State, error) {
	m, err := modeOf(cfg)
	if err != nil {
		return State{}, err
	}
	return m.plan(cfg, facts)
}

func ready(format string, args ...any) Condition {
	return Condition{Ready: true, Reason: "NetworkReady", Message: fmt.Sprintf(format, args...)}
}

// planRanges starts the plan of all modes that create a network for the Node's pod CIDRs: an engine network with gateways, without a driver. The
// State is not Ready while the Node has no range.
func planRanges(cfg Config, facts Facts) (State, error) {
	cidrs, err := parseCIDRs(facts.PodCIDRs)
	if err != nil {
		return State{}, err
	}
	if len(cidrs) == 0 {
		return State{Ready: Condition{Reason: rangeMissing,
			Message: "the Node has no spec.podCIDRs yet; run the controller manager with --allocate-node-cidrs, or set --pod-cidr here"}}, nil
	}
	n := &pod.EngineNetwork{Name: cfg.EngineName(), Subnets: cidrs, Options: map[string]string{}, Labels: map[string]string{LabelPods: "pods"}}
	for _, c := range cidrs {
		n.Gateways = append(n.Gateways, c.Addr().Next())
	}
	return State{Join: n.Name, Network: n, Ready: ready("pods get addresses of %s", Join(cidrs))}, nil
}

// EngineName is the name of the engine network that we create.
func (cfg Config) EngineName() string {
	if cfg.Name == "" {
		return defaultName
	}
	return cfg.Name
}

// parseCIDRs parses pod CIDRs and sorts IPv4 first.
func parseCIDRs(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("spec.podCIDRs has %q; want a range like 10.244.1.0/24", s)
		}
		// The network address, the gateway, one pod, and in IPv4 the broadcast address.
		if p.Addr().BitLen()-p.Bits() < 2 || p.Addr().Is4In6() {
			return nil, fmt.Errorf("spec.podCIDRs has %q, which has no room for a gateway and pods; want at most %d bits", s, p.Addr().BitLen()-2)
		}
		p = p.Masked()
		for _, o := range out {
			if o.Addr().Is4() == p.Addr().Is4() {
				return nil, fmt.Errorf("spec.podCIDRs has both %s and %s; want at most one range per address family", o, p)
			}
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return out, nil
}

// private are the ranges from which clusters usually take their addresses.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// nonMasquerade are the ranges to which traffic from pods of c keeps its address: always c itself and multicast, then the configured ranges. The
// default is the private range around c and the learned ranges of other nodes (which a kubelet's credentials do not let it read).
func nonMasquerade(cfg Config, facts Facts, c netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{c, netip.MustParsePrefix("224.0.0.0/4")}
	if c.Addr().Is6() {
		out[1] = netip.MustParsePrefix("ff00::/8")
	}
	configured := false
	for _, p := range cfg.NonMasquerade {
		if p.Addr().Is4() == c.Addr().Is4() {
			out, configured = append(out, p.Masked()), true
		}
	}
	for _, p := range private {
		if !configured && p.Overlaps(c) && p.Bits() <= c.Bits() {
			out = append(out, p)
		}
	}
	for _, p := range facts.Pods {
		if !configured && p.Addr().Is4() == c.Addr().Is4() {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if d := a.Addr().Compare(b.Addr()); d != 0 {
			return d
		}
		return a.Bits() - b.Bits()
	})
	out = slices.Compact(out)
	return slices.DeleteFunc(slices.Clone(out), func(p netip.Prefix) bool { // a range inside another needs no rule
		return slices.ContainsFunc(out, func(o netip.Prefix) bool { return o != p && o.Bits() < p.Bits() && o.Contains(p.Addr()) })
	})
}
