package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// WindowsNetwork says how pods of Windows are connected.
type WindowsNetwork string

const (
	// L2Bridge: pods share the host's hardware address, their gateway is an endpoint of the host. From Server 2019 on.
	L2Bridge WindowsNetwork = "l2bridge"
	// Transparent: pods have hardware addresses of their own, which a hypervisor must let pass (MAC spoofing); no policies.
	Transparent WindowsNetwork = "transparent"
	// NAT: pods reach others under the host's address, and no other node reaches them.
	NAT WindowsNetwork = "nat"
)

// server2019 is the first build whose HNS has a schema of version 2, which can leave a gateway's address to an endpoint.
const server2019 = 17763

// Options of Docker's networks on Windows. Source: moby daemon/libnetwork/drivers/windows/labels.go.
const (
	windowsshim     = "com.docker.network.windowsshim."
	optionName      = windowsshim + "networkname"
	optionHNS       = windowsshim + "hnsid"
	optionInterface = windowsshim + "interface"
	optionNAT       = windowsshim + "enable_outboundnat"
	optionNoNAT     = windowsshim + "outboundnat_exceptions"
)

// FirewallRule is the name of the rule of Windows Firewall by which others reach the kubelet.
const FirewallRule = "winkube kubelet"

// adapterOf is the host's own adapter on a virtual switch, named by the network or by the network adapter below.
func adapterOf(name string) string { return "vEthernet (" + name + ")" }

// belowAdapter is the network adapter from which Windows took name for the host's own, or name itself.
func belowAdapter(name string) string {
	if rest, ok := strings.CutPrefix(name, "vEthernet ("); ok {
		return strings.TrimSuffix(rest, ")")
	}
	return name
}

// planWindows decides the network of a Windows host. Docker has none for IPv6 there (moby libnetwork/drivers/windows, CreateNetwork), so that
// a range of IPv6 is left alone.
func planWindows(cfg Config, facts Facts, s *State) error {
	n := s.Network
	if n.Subnets[0].Addr().Is6() {
		return fmt.Errorf("spec.podCIDRs has %s only; Docker on Windows has networks of IPv4 only", n.Subnets[0])
	}
	n.Subnets, n.Gateways = n.Subnets[:1], n.Gateways[:1]
	n.Options[optionName] = n.Name
	s.Ready = ready("pods get addresses of %s", n.Subnets[0])
	if err := cfg.CheckWindows(); err != nil {
		return err
	}
	if cfg.Mode == Overlay {
		return planOverlay(cfg, facts, s)
	}
	kind := cfg.Windows
	if kind == "" && cfg.Platform.Build < server2019 {
		kind = Transparent
	} else if kind == "" {
		kind = L2Bridge
	}
	n.Driver = string(kind)
	switch kind {
	case L2Bridge:
		return planBridge(cfg, facts, s)
	case Transparent:
		return planTransparent(cfg, facts, s)
	}
	return nil // NAT: HNS gives the gateway's address to the host
}

// CheckWindows says whether this build of Windows has the network that was chosen.
func (cfg Config) CheckWindows() error {
	build := cfg.Platform.Build
	switch {
	case cfg.Mode == Overlay && build < server2019:
		return fmt.Errorf("network mode %s needs Windows Server 2019 (build %d) with the updates from KB4489899 (March 2019) on: HNS of build %d knows no subnets of other nodes; want %s or %s",
			Overlay, server2019, build, HostGateway, Upstream)
	case cfg.Mode == Overlay && cfg.Windows != "":
		return fmt.Errorf("--windows-network=%s: network mode %s is a kind of its own; want one of the two flags", cfg.Windows, Overlay)
	case cfg.Windows == L2Bridge && build < server2019:
		return fmt.Errorf("--windows-network=%s needs Windows Server 2019 (build %d): HNS of build %d keeps the gateway's address from the host; want %s", L2Bridge, server2019, build, Transparent)
	case cfg.Windows == NAT && build < server2019:
		return fmt.Errorf("--windows-network=%s: build %d of Windows has one such network, Docker's own (docker/for-win#726); want %s, or CONTAINER_NETWORK=nat", NAT, build, Transparent)
	case !slices.Contains([]WindowsNetwork{"", L2Bridge, Transparent, NAT}, cfg.Windows):
		return fmt.Errorf("--windows-network=%s is not known; want %s, %s or %s", cfg.Windows, L2Bridge, Transparent, NAT)
	}
	return nil
}

// planTransparent: the pods' gateway is an address of the host's own adapter on the switch. Server 2016 has one name for that adapter
// (docker/for-win#294), later ones take the network adapter's.
func planTransparent(cfg Config, facts Facts, s *State) error {
	n, adapter := s.Network, cfg.Adapter
	if adapter == "" && cfg.Platform.Build >= server2019 {
		adapter = belowAdapter(facts.Adapter)
	}
	name := adapterOf(adapter)
	if cfg.Platform.Build < server2019 {
		name = adapterOf("HNSTransparent")
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

// planBridge: the first address of the range is HNS', the second the pods' gateway, which is an endpoint of the host (as in Microsoft's
// scripts for l2bridge networks, where cbr0 has the second).
func planBridge(cfg Config, facts Facts, s *State) error {
	n := s.Network
	c := n.Subnets[0]
	if c.Bits() > 29 {
		return fmt.Errorf("spec.podCIDRs has %s, which has no room for HNS' address, a gateway and pods; want at most 29 bits", c)
	}
	n.Gateways[0] = c.Addr().Next().Next()
	adapter := cfg.Adapter
	if adapter == "" {
		adapter = belowAdapter(facts.Adapter)
	}
	var keep []string
	for _, p := range keptInside(cfg, c) {
		keep = append(keep, p.String())
	}
	n.Options[optionNAT], n.Options[optionNoNAT] = "true", strings.Join(keep, ",")
	s.Bridge = &hns.Bridge{Name: n.Name, Subnet: c, Gateway: n.Gateways[0], Adapter: adapter}
	for _, p := range cfg.Services {
		if p.Addr().Is4() {
			s.Bridge.Routes = append(s.Bridge.Routes, p.Masked())
		}
	}
	for _, addr := range cfg.NodeIPs {
		if addr.Is4() {
			s.Bridge.Routes = append(s.Bridge.Routes, netip.PrefixFrom(addr, 32))
		}
	}
	s.Gateways = []Gateway{{Interface: adapterOf(n.Name), Address: netip.PrefixFrom(n.Gateways[0], c.Bits())}}
	s.Forward = cfg.NodeIPs
	return nil
}

// keptInside are the ranges of IPv4 towards which OutBoundNAT leaves the pods of c their address.
func keptInside(cfg Config, c netip.Prefix) (keep []netip.Prefix) {
	for _, p := range slices.Concat(nonMasquerade(cfg, c), cfg.Services) {
		if p = p.Masked(); p.Addr().Is4() && !p.Addr().IsMulticast() && !slices.Contains(keep, p) {
			keep = append(keep, p)
		}
	}
	return keep
}

// planOverlay: HNS makes the network and its distributed router, which has the gateway's address; the pods' endpoints are ours, since Docker has
// overlay networks in swarms only. The range's third address is the source VIP of the service proxy (hns.SourceVIP).
func planOverlay(cfg Config, facts Facts, s *State) error {
	c := s.Network.Subnets[0]
	if c.Bits() > 29 {
		return fmt.Errorf("spec.podCIDRs has %s, which has no room for HNS' router, the service proxy and pods; want at most 29 bits", c)
	}
	i := slices.IndexFunc(cfg.NodeIPs, netip.Addr.Is4)
	if i < 0 {
		return fmt.Errorf("network mode %s needs an address of this node (--node-ip) in the family of its pod CIDR %s; there is none", Overlay, c)
	}
	o := hns.Overlay{Name: vxlan.DeviceName(true), Subnet: c, Gateway: c.Addr().Next(), VNI: vxlan.VNI, Adapter: cfg.Adapter, Provider: cfg.NodeIPs[i], Keep: keptInside(cfg, c)}
	if o.Adapter == "" {
		o.Adapter = belowAdapter(facts.Adapter)
	}
	for _, p := range cfg.Services {
		if p.Addr().Is4() {
			o.Services = append(o.Services, p.Masked())
		}
	}
	s.Join, s.Network, s.Overlay = noEngineNetwork, nil, &o
	return nil
}

func (s State) printWindows(b *strings.Builder) {
	if o := s.Overlay; o != nil {
		fmt.Fprintf(b, "HNS network: %s, overlay on adapter %q, %s, gateway %s is HNS', VNI %d, UDP port %d, from %s\n", o.Name, o.Adapter, o.Subnet, o.Gateway, o.VNI, vxlan.Port, o.Provider)
		fmt.Fprintf(b, "source VIP of the service proxy: %s\n", hns.SourceVIP(o.Subnet))
		fmt.Fprintf(b, "masquerade: except to %s\n", join(o.Keep))
		if len(o.Services) > 0 {
			fmt.Fprintf(b, "stays in the overlay: %s\n", join(o.Services))
		}
	}
	if h := s.Bridge; h != nil {
		fmt.Fprintf(b, "HNS network: %s, l2bridge on adapter %q, %s, gateway %s is an endpoint of the host\n", h.Name, h.Adapter, h.Subnet, h.Gateway)
		fmt.Fprintf(b, "pods' traffic by the host: %s\n", join(h.Routes))
	}
	for _, addr := range s.Forward {
		fmt.Fprintf(b, "forwarding: where the host has %s\n", addr)
	}
}
