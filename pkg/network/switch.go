package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
)

// planSwitch plans the network on a virtual switch of Windows, of the configured kind or this build's default.
func planSwitch(cfg Config, facts Facts) (State, error) {
	s, err := planWindows(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	s.Network.Driver = string(cfg.kind())
	switch cfg.kind() {
	case L2Bridge:
		err = planL2Bridge(cfg, facts, &s)
	case Transparent:
		err = planTransparent(cfg, facts, &s)
	case NAT: // HNS assigns the gateway's address to the host, whose other addresses pods reach if that adapter forwards (microsoft/WSL#4288)
		s.Gateways = []Gateway{{Interface: AdapterOf(s.Network.Name), Address: netip.PrefixFrom(s.Network.Gateways[0], s.Network.Subnets[0].Bits())}}
		s.Forward = cfg.NodeIPs // external addresses of Services are on an adapter of the proxy
	}
	return s, err
}

// planTransparent plans a transparent network. The pods' gateway is an address of the host's own adapter on the switch. Server 2016 uses one name for
// that adapter (docker/for-win#294), later ones the network adapter's.
func planTransparent(cfg Config, facts Facts, s *State) error {
	n, adapter := s.Network, cfg.Adapter
	if adapter == "" && cfg.Platform.Build >= server2019 {
		adapter = BelowAdapter(facts.Adapter)
	}
	name := AdapterOf(adapter)
	if cfg.Platform.Build < server2019 {
		name = AdapterOf("HNSTransparent")
	} else if adapter == "" {
		return fmt.Errorf("network %s needs the name of a network adapter: none has this node's address %v; want --interface", Transparent, cfg.NodeIPs)
	}
	if adapter != "" {
		n.Options[optionInterface] = adapter
	}
	s.Gateways = []Gateway{{Interface: name, Address: netip.PrefixFrom(n.Gateways[0], n.Subnets[0].Bits())}}
	s.Forward = cfg.NodeIPs
	return nil
}

// planL2Bridge plans an l2bridge network. HNS has the first address of the range. The second is the pods' gateway, an endpoint of the host (as in
// Microsoft's scripts for l2bridge networks, where cbr0 has the second). If HNS would reserve the second as the network's gateway, the network's
// gateway is the first.
func planL2Bridge(cfg Config, facts Facts, s *State) error {
	n := s.Network
	c := n.Subnets[0]
	if c.Bits() > 29 {
		return fmt.Errorf("spec.podCIDRs has %s, which has no room for HNS' address, a gateway and pods; want at most 29 bits", c)
	}
	n.Gateways[0] = c.Addr().Next().Next()
	adapter := cfg.Adapter
	if adapter == "" {
		adapter = BelowAdapter(facts.Adapter)
	}
	s.Bridge = &hns.Bridge{Name: n.Name, Subnet: c, Gateway: n.Gateways[0], Adapter: adapter, Keep: keptInside(cfg, facts, c)}
	var keep []string
	for _, p := range s.Bridge.Keep {
		keep = append(keep, p.String())
	}
	n.Options[optionNAT], n.Options[optionNoNAT] = "true", strings.Join(keep, ",")
	for _, p := range facts.services(cfg) {
		if p.Addr().Is4() {
			s.Bridge.Routes = append(s.Bridge.Routes, p.Masked())
		}
	}
	for _, addr := range cfg.NodeIPs {
		if addr.Is4() {
			s.Bridge.Routes = append(s.Bridge.Routes, netip.PrefixFrom(addr, 32))
		}
	}
	s.Gateways = []Gateway{{Interface: AdapterOf(n.Name), Address: netip.PrefixFrom(n.Gateways[0], c.Bits())}}
	s.Forward = cfg.NodeIPs
	if cfg.ownsBridge() {
		s.Bridge.Router, s.Join, s.Network = c.Addr().Next(), noEngineNetwork, nil
	}
	return nil
}

// vswitch is the Maker of host-gateway and upstream on Windows: the engine creates a network on a virtual switch. An l2bridge network is on top of
// one that we create in HNS. A switch may cost the host its own address; uplink guards against that.
type vswitch struct {
	plain
	cfg       Config
	host      Host
	windows   Windows
	network   engineNetwork
	announcer announcer
	repairer  repairer
	uplink    *uplinkGuard
	left      bool // the network of mode overlay was removed
}

func newSwitch(s shared) Maker {
	if s.cfg.ownsBridge() {
		return newOwnBridge(s)
	}
	return &vswitch{cfg: s.cfg, host: s.Host, windows: s.Windows, network: engineNetwork{engine: s.Engine}, announcer: announcer{s.Node},
		repairer: newRepairer(s), uplink: newUplinkGuard(s, true)}
}

// Make implements Maker.
func (v *vswitch) Make(ctx context.Context, in Input) (Made, error) {
	networks, err := v.network.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if v.uplink.lost != nil {
		return Made{}, refuse(addressLost, v.uplink.lost)
	}
	if err := v.leaveOverlay(); err != nil {
		return Made{}, err
	}
	want, s := in.State.Network, in.State
	made := Made{Warning: overlapping(s, networks, in.Surroundings, v.cfg.Platform)}
	if named(networks, want.Name) == nil {
		if wrong := cmp.Or(lacksAdapter(v.cfg, in.Surroundings), made.Warning); wrong.Reason != "" { // creating it would fail halfway, or take addresses that others use
			return Made{}, refuse(wrong.Reason, errors.New(wrong.Message))
		}
	}
	if err := v.uplink.save(networks, *want); err != nil {
		return Made{}, err
	}
	if err := v.makeBridge(networks, s); err != nil {
		return made, err
	}
	have, err := v.network.existing(ctx, networks, want)
	if err != nil {
		return made, err
	}
	if have != nil && !SameSubnets(have.Subnets, want.Subnets) {
		return keepServing(ctx, v.cfg, v.host, in, *have)
	}
	if have == nil {
		if s.Bridge != nil && want.Options[optionHNS] == "" {
			return made, fmt.Errorf("the engine's network %q was removed and is being recreated", s.Join)
		}
		if err := v.network.engine.EnsureNetwork(ctx, *want); err != nil {
			return made, err
		}
	}
	remove := func(ctx context.Context) error { return v.network.engine.RemoveNetwork(ctx, want.Name) }
	if err := errors.Join(v.uplink.verify(ctx, want.Name, remove), v.host.Apply(ctx, s), v.announcer.announce(ctx, in.Annotations, s)); err != nil {
		return made, err
	}
	made.State, made.Found = s, have
	return made, nil
}

// makeBridge creates the network in HNS below the engine's, unless the engine's has another range and must be removed or kept first.
func (v *vswitch) makeBridge(networks []pod.EngineNetwork, s State) error {
	have := named(networks, s.Network.Name)
	if s.Bridge == nil || have != nil && !SameSubnets(have.Subnets, s.Network.Subnets) {
		return nil
	}
	id, err := v.windows.MakeBridge(*s.Bridge)
	s.Network.Options[optionHNS] = id.Upper()
	return err
}

// leaveOverlay removes the network of mode overlay, and a bridge of ours if the engine creates another kind, once no pod has an endpoint on it.
func (v *vswitch) leaveOverlay() error {
	if v.left {
		return nil
	}
	err := removeOverlay(v.windows)
	if err == nil && v.cfg.kind() != L2Bridge {
		err = leaveBridge(v.windows, v.cfg.EngineName())
	}
	v.left = err == nil
	return err
}

// Reconnect implements Maker.
func (v *vswitch) Reconnect(ctx context.Context, made Made) error {
	return reconnect(ctx, v.repairer, made)
}
