package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/network/iptables"
	"github.com/winkube/winkube/pkg/vxlan"
)

// usualMTU is what the engine gives its networks by default, in bytes.
const usualMTU = 1500

// planBridge decides a bridge of Linux, whose pods the other nodes reach by routes.
func planBridge(cfg Config, facts Facts) (State, error) {
	s, err := planRanges(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	planLinux(cfg, facts, &s)
	setMTU(&s, facts.MTU)
	return s, nil
}

// planTunnels decides a bridge of Linux with the ends of tunnels, by which pods reach those of other nodes.
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
	return s, nil
}

// planLinux decides the bridge, its addresses and the packet filter.
func planLinux(cfg Config, facts Facts, s *State) {
	n := s.Network
	n.Driver = "bridge"
	n.Options["com.docker.network.bridge.name"] = bridgeName
	// Pods talk to each other with their own addresses; what leaves the cluster is masqueraded by our rules.
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
		s.Rules = append(s.Rules, iptables.Rules{PodCIDR: c, NonMasquerade: nonMasquerade(cfg, c)})
	}
}

// setMTU has the engine give pods' interfaces that MTU in bytes; 0: its default.
func setMTU(s *State, mtu int) {
	if mtu != 0 && mtu != usualMTU {
		s.Network.Options["com.docker.network.driver.mtu"] = strconv.Itoa(mtu)
	}
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

// major is the first number of an engine's version.
func major(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// bridge is the Maker of host-gateway, upstream and overlay on Linux: the engine makes a bridge, the host gets the pods' gateway address, packet
// filter rules and tunnel devices.
type bridge struct {
	plain
	cfg       Config
	host      Host
	network   engineNetwork
	announcer announcer
	repairer  repairer
}

func newBridge(s shared) Maker {
	return &bridge{cfg: s.cfg, host: s.Host, network: engineNetwork{s.Engine}, announcer: announcer{s.Node}, repairer: newRepairer(s)}
}

// Make implements Maker.
func (b *bridge) Make(ctx context.Context, in Input) (Made, error) {
	networks, err := b.network.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	want, s := in.State.Network, in.State
	made := Made{Warning: overlapping(s, networks, in.Surroundings, b.cfg.Platform)}
	if named(networks, want.Name) == nil && made.Warning.Reason != "" { // it would take addresses of others
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
