// Package network is the arrow from this node's own Node object to its pod network (kubelet); package routes has the way to other nodes.
//
//	own Node --watch--> Plan(config, facts) State --> engine network, packet filter, forwarding, gateway address --> Ready, Join
//
// Plan is pure. Manager holds the host to the State; what it asks of the engine is the interface Engine (package docker has it), what it
// asks of the system the interface Host (iptables and sysctl on Linux, IP helper on Windows).
package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Mode says who makes the pod network and the way to other nodes.
type Mode string

const (
	HostGateway Mode = "host-gateway" // the network is made here, routes to other nodes by the proxy
	Upstream    Mode = "upstream"     // the network is made here, a router knows the pod CIDRs
	Overlay     Mode = "overlay"      // the network and a VXLAN device are made here, the entries of other nodes by the proxy
	External    Mode = "external"     // an engine network that exists is used; nothing is made
	CNI         Mode = "cni"          // CNI plugins make the network of each pod
)

// Config is what the administrator chose.
type Config struct {
	Mode     Mode
	Platform pod.Platform
	// External is the engine network of mode External (CONTAINER_NETWORK).
	External string
	// ConfDir is where mode CNI finds the network's configuration.
	ConfDir string
	// NodeIPs are this node's addresses, primary first: tunnels begin at the first of their family.
	NodeIPs []netip.Addr
	// Name is the engine network that is made; "": winkube.
	Name string
	// Windows is the kind of network on Windows; "": l2bridge, before Server 2019 transparent.
	Windows WindowsNetwork
	// Adapter is the Windows network adapter that the network takes; "": the one with the node's address.
	Adapter string
	// Services are the ranges of services' addresses: pods of an l2bridge network send there by their host.
	Services []netip.Prefix
	// NonMasquerade are the ranges to which pods' traffic keeps the pod's address: the cluster's range of pods first of all. Empty: the
	// private range (RFC 1918, RFC 6598, RFC 4193) in which this node's pod CIDR lies, or that pod CIDR alone.
	NonMasquerade []netip.Prefix
}

// Facts is what Plan must know of this node.
type Facts struct {
	PodCIDRs      []string // spec.podCIDRs of the Node, at most one per family
	EngineVersion string   // 20.10.24; "" is taken for an old engine
	MTU           int      // of the interface with the node's address, in bytes; 0: not known, taken for 1500
	Adapter       string   // that interface's name; "": not known
}

// Condition is what the Node object says of the network.
type Condition struct {
	Ready           bool
	Reason, Message string
}

// Rules is what the packet filter of Linux does for one address family.
type Rules struct {
	PodCIDR       netip.Prefix   // traffic from and to it is forwarded
	NonMasquerade []netip.Prefix // sorted; other traffic from PodCIDR leaves with the host's address; empty: none does
}

// Gateway is an address that the host itself must have on an interface.
type Gateway struct {
	Interface string // its name: vEthernet (HNSTransparent)
	Address   netip.Prefix
}

// State is everything that this host should have for its pods. The zero State is nothing.
type State struct {
	Join     string             // engine network for pods; "" while there is none
	Network  *pod.EngineNetwork // to be made; nil: none
	Rules    []Rules            // IPv4 first
	Gateways []Gateway
	Devices  []vxlan.Device // ends of tunnels, IPv4 first
	Bridge   *hns.Bridge    // the network in HNS beneath the engine's, to be made first; nil: the engine makes it
	Overlay  *hns.Overlay   // the network in HNS, on which pods get endpoints of ours; nil: none
	Forward  []netip.Addr   // forwarding is switched on where the host has these addresses
	Ready    Condition
}

const (
	defaultName = "winkube"
	bridgeName  = "winkube0"
	// LabelPods marks the engine network that is ours to replace when no container uses it.
	LabelPods = "io.winkube.network"
)

// Plan decides the node's pod network. It is pure. Bad input is an error; input that is not there yet is a State that is not Ready.
func Plan(cfg Config, facts Facts) (State, error) {
	switch cfg.Mode {
	case External:
		if cfg.External == "" {
			return State{}, fmt.Errorf("network mode %s needs the name of an engine network in CONTAINER_NETWORK", External)
		}
		return State{Join: cfg.External, Ready: ready("pods join the engine's network %q", cfg.External)}, nil
	case HostGateway, Upstream, Overlay, CNI:
	default:
		return State{}, fmt.Errorf("network mode %q is not known; want %s, %s, %s, %s or %s", cfg.Mode, HostGateway, Upstream, Overlay, External, CNI)
	}
	cidrs, err := parseCIDRs(facts.PodCIDRs)
	if err != nil {
		return State{}, err
	}
	if cfg.Mode == CNI {
		return planCNI(cfg, cidrs), nil
	}
	if len(cidrs) == 0 {
		return State{Ready: Condition{Reason: "PodCIDRMissing",
			Message: "the Node has no spec.podCIDRs yet; the controller manager gives them with --allocate-node-cidrs, or --pod-cidr is set here"}}, nil
	}
	n := &pod.EngineNetwork{Name: cfg.Name, Subnets: cidrs, Options: map[string]string{}, Labels: map[string]string{LabelPods: "pods"}}
	if n.Name == "" {
		n.Name = defaultName
	}
	for _, c := range cidrs {
		n.Gateways = append(n.Gateways, c.Addr().Next())
	}
	s := State{Join: n.Name, Network: n, Ready: ready("pods get addresses of %s", join(cidrs))}
	if cfg.Platform.OS == "windows" {
		err = planWindows(cfg, facts, &s)
	} else {
		err = planLinux(cfg, facts, &s)
	}
	return s, err
}

func ready(format string, args ...any) Condition {
	return Condition{Ready: true, Reason: "NetworkReady", Message: fmt.Sprintf(format, args...)}
}

// parseCIDRs reads pod CIDRs and sorts IPv4 first.
func parseCIDRs(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("spec.podCIDRs has %q; want a range like 10.244.1.0/24", s)
		}
		// The network's own address, the gateway, one pod, and in IPv4 the broadcast address.
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

// planCNI leaves all to the plugins, but lets what they may not know of pass: the engine's FORWARD policy drops what comes from other nodes
// for the Node's pods. A network whose addresses are not of the Node's ranges, or that has none, sees to that itself.
func planCNI(cfg Config, cidrs []netip.Prefix) State {
	s := State{Join: noEngineNetwork, Ready: ready("pods get their network from CNI plugins")}
	for _, c := range cidrs {
		if cfg.Platform.OS != "windows" {
			s.Rules = append(s.Rules, Rules{PodCIDR: c})
		}
	}
	return s
}

// usualMTU is what the engine gives its networks unless told otherwise.
const usualMTU = 1500

func planLinux(cfg Config, facts Facts, s *State) error {
	n := s.Network
	mtu := facts.MTU
	if mtu == 0 {
		mtu = usualMTU
	}
	n.Driver = "bridge"
	n.Options["com.docker.network.bridge.name"] = bridgeName
	// Pods talk to each other under their own addresses; what leaves the cluster is masqueraded by our rules.
	n.Options["com.docker.network.bridge.enable_ip_masquerade"] = "false"
	for i, c := range n.Subnets {
		s.Gateways = append(s.Gateways, Gateway{Interface: bridgeName, Address: netip.PrefixFrom(n.Gateways[i], c.Bits())})
		family := "ipv4"
		if c.Addr().Is6() {
			family = "ipv6"
		}
		// From 28 on an engine drops what comes from other hosts for a container, already before routing, unless the network says otherwise.
		if major(facts.EngineVersion) >= 28 {
			n.Options["com.docker.network.bridge.gateway_mode_"+family] = "nat-unprotected"
		}
		s.Rules = append(s.Rules, Rules{PodCIDR: c, NonMasquerade: nonMasquerade(cfg, c)})
	}
	if cfg.Mode == Overlay {
		if err := planDevices(cfg, mtu, s); err != nil {
			return err
		}
		mtu = smallestMTU(s.Devices)
	}
	if mtu != usualMTU {
		n.Options["com.docker.network.driver.mtu"] = strconv.Itoa(mtu)
	}
	return nil
}

// planDevices decides the ends of the tunnels, one per family of pods.
func planDevices(cfg Config, uplink int, s *State) error {
	for _, c := range s.Network.Subnets {
		i := slices.IndexFunc(cfg.NodeIPs, func(a netip.Addr) bool { return a.Is4() == c.Addr().Is4() })
		if i < 0 {
			return fmt.Errorf("network mode %s needs an address of this node (--node-ip) in the family of its pod CIDR %s; there is none", Overlay, c)
		}
		s.Devices = append(s.Devices, vxlan.NewDevice(c, cfg.NodeIPs[i], uplink))
	}
	return nil
}

func smallestMTU(devices []vxlan.Device) int {
	smallest := devices[0].MTU
	for _, d := range devices {
		smallest = min(smallest, d.MTU)
	}
	return smallest
}

// private are the ranges from which clusters take their addresses.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// nonMasquerade is where traffic from pods of c keeps its address: always c itself and what is multicast, then what was configured or, by
// default, the private range around c, since a node does not learn the pod CIDRs of the others (its credentials do not allow it).
func nonMasquerade(cfg Config, c netip.Prefix) []netip.Prefix {
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
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if d := a.Addr().Compare(b.Addr()); d != 0 {
			return d
		}
		return a.Bits() - b.Bits()
	})
	out = slices.Compact(out)
	return slices.DeleteFunc(slices.Clone(out), func(p netip.Prefix) bool { // what lies in another needs no rule of its own
		return slices.ContainsFunc(out, func(o netip.Prefix) bool { return o != p && o.Bits() < p.Bits() && o.Contains(p.Addr()) })
	})
}

// major is the first number of an engine's version.
func major(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

func join(list []netip.Prefix) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// String prints the State for people (`kubelet network plan`).
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ready: %t (%s: %s)\n", s.Ready.Ready, s.Ready.Reason, s.Ready.Message)
	if s.Join != "" {
		fmt.Fprintf(&b, "pods join: %s\n", s.Join)
	}
	if n := s.Network; n != nil {
		fmt.Fprintf(&b, "engine network: %s, driver %s\n", n.Name, n.Driver)
		for i, c := range n.Subnets {
			fmt.Fprintf(&b, "  subnet %s, gateway %s\n", c, n.Gateways[i])
		}
		for _, m := range []struct {
			what string
			kv   map[string]string
		}{{"option", n.Options}, {"label", n.Labels}} {
			for _, k := range sortedKeys(m.kv) {
				fmt.Fprintf(&b, "  %s %s=%s\n", m.what, k, m.kv[k])
			}
		}
	}
	for _, r := range s.Rules {
		fmt.Fprintf(&b, "forward: from and to %s\n", r.PodCIDR)
		if len(r.NonMasquerade) > 0 {
			fmt.Fprintf(&b, "masquerade: from %s except to %s\n", r.PodCIDR, join(r.NonMasquerade))
		}
	}
	s.printWindows(&b)
	for _, g := range s.Gateways {
		fmt.Fprintf(&b, "address: %s on %s\n", g.Address, g.Interface)
	}
	for _, d := range s.Devices {
		fmt.Fprintf(&b, "tunnel: %s, VNI %d, UDP port %d\n", d, vxlan.VNI, vxlan.Port)
	}
	b.WriteString(vxlan.Text(vxlan.Annotations(s.Devices, nil)))
	return b.String()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
