package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// usualMTU is the engine's default MTU of networks, in bytes.
const usualMTU = 1500

// Since this release an engine drops packets from other hosts to a container before routing, unless the option of the network disables that. An
// engine reads the option only when it makes a network.
const (
	guardingRelease   = 28
	optionGatewayMode = "com.docker.network.bridge.gateway_mode_" // and the family
)

// planBridge plans a Linux bridge whose pods other nodes reach by routes.
func planBridge(cfg Config, facts Facts) (State, error) {
	s, err := planRanges(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	planLinux(cfg, facts, &s)
	setMTU(&s, facts.MTU)
	ownLinks(cfg, facts, &s)
	return s, nil
}

// planTunnels plans a Linux bridge with tunnel devices to the pods of other nodes.
func planTunnels(cfg Config, facts Facts) (State, error) {
	s, err := planRanges(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	planLinux(cfg, facts, &s)
	mtu := facts.MTU
	if mtu == 0 {
		mtu = usualMTU
	}
	if err := planDevices(cfg, mtu, &s); err != nil {
		return s, err
	}
	setMTU(&s, smallestMTU(s.Devices))
	ownLinks(cfg, facts, &s)
	return s, nil
}

// planLinux plans the bridge, its addresses and the packet filter.
func planLinux(cfg Config, facts Facts, s *State) {
	n := s.Network
	n.Driver = "bridge"
	n.Options["com.docker.network.bridge.name"] = bridgeName
	// Pods talk to each other with their own addresses; our rules masquerade traffic that leaves the cluster.
	n.Options["com.docker.network.bridge.enable_ip_masquerade"] = "false"
	for i, c := range n.Subnets {
		s.Gateways = append(s.Gateways, Gateway{Interface: bridgeName, Address: netip.PrefixFrom(n.Gateways[i], c.Bits())})
		if major(facts.EngineVersion) >= guardingRelease {
			n.Options[optionGatewayMode+family(c)] = "nat-unprotected"
		}
		s.Rules = append(s.Rules, iptables.Rules{PodCIDR: c, NonMasquerade: nonMasquerade(cfg, facts, c)})
	}
}

// guarded returns rules that let packets pass which the engine would drop because have, an existing network, lacks the option that planLinux gives a
// new one: an earlier release made it, and the engine was upgraded under its pods. nil: there is no such network.
func guarded(facts Facts, have *pod.EngineNetwork, rules []iptables.Rules) []iptables.Rules {
	if have == nil || major(facts.EngineVersion) < guardingRelease {
		return rules
	}
	out := slices.Clone(rules)
	for i := range out {
		if mode := have.Options[optionGatewayMode+family(out[i].PodCIDR)]; mode != "nat-unprotected" && mode != "routed" {
			out[i].Guarded = bridgeName
		}
	}
	return out
}

func family(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}

// setMTU sets the MTU of pods' interfaces in bytes; 0: the engine's default.
func setMTU(s *State, mtu int) {
	if mtu != 0 && mtu != usualMTU {
		s.Network.Options["com.docker.network.driver.mtu"] = strconv.Itoa(mtu)
	}
}

// planDevices plans the tunnel devices, one per address family of pods.
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

// major is the major number of an engine's version.
func major(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// bridge is the Maker of host-gateway, upstream and overlay on Linux. The engine creates a bridge; the host gets the pods' gateway address, packet
// filter rules and tunnel devices.
type bridge struct {
	plain
	cfg       Config
	host      Host
	network   engineNetwork
	announcer announcer
	repairer  repairer
}

// newLinux returns the Maker for Config.Interfaces.
func newLinux(s shared) Maker {
	if s.cfg.ownsLinks() {
		return newPodBridge(s)
	}
	return newBridge(s)
}

func newBridge(s shared) Maker {
	return &bridge{cfg: s.cfg, host: s.Host, network: engineNetwork{engine: s.Engine}, announcer: announcer{s.Node}, repairer: newRepairer(s)}
}

// Make implements Maker.
func (b *bridge) Make(ctx context.Context, in Input) (Made, error) {
	networks, err := b.network.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if err := keepsLinks(in.Surroundings); err != nil {
		return Made{}, err
	}
	want, s := in.State.Network, in.State
	made := Made{Warning: overlapping(s, networks, in.Surroundings, b.cfg.Platform)}
	if named(networks, want.Name) == nil && made.Warning.Reason != "" { // it would take addresses that others use
		return Made{}, refuse(made.Warning.Reason, errors.New(made.Warning.Message))
	}
	have, err := b.network.existing(ctx, networks, want)
	if err != nil {
		return made, err
	}
	if have != nil && !SameSubnets(have.Subnets, want.Subnets) {
		return keepServing(ctx, b.cfg, b.host, in, *have)
	}
	if have == nil {
		if err := b.network.engine.EnsureNetwork(ctx, *want); err != nil {
			return made, err
		}
	}
	s.Rules = guarded(in.Facts, have, s.Rules)
	if err := errors.Join(b.host.Apply(ctx, s), b.announcer.announce(ctx, in.Annotations, s)); err != nil {
		return made, err
	}
	made.State, made.Found = s, have
	return made, nil
}

// Reapply implements Maker.
func (b *bridge) Reapply(ctx context.Context, s State) error { return b.host.Apply(ctx, s) }

// Reconnect implements Maker.
func (b *bridge) Reconnect(ctx context.Context, made Made) error {
	return reconnect(ctx, b.repairer, made)
}
