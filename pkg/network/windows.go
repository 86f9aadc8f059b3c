package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// WindowsNetwork says how Windows pods are connected.
type WindowsNetwork string

const (
	// L2Bridge: pods share the host's hardware address, their gateway is an endpoint of the host. Since Server 2019.
	L2Bridge WindowsNetwork = "l2bridge"
	// Transparent: pods have their own hardware addresses, which a hypervisor must allow (MAC spoofing); no policies.
	Transparent WindowsNetwork = "transparent"
	// NAT: pods reach others with the host's address, and other nodes cannot reach them.
	NAT WindowsNetwork = "nat"
)

// server2019 is the first build whose HNS has a schema of version 2.
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

// FirewallRule is the name of the Windows Firewall rule that admits connections to the kubelet.
const FirewallRule = "winkube kubelet"

// AdapterOf is the host's own adapter on a virtual switch, named by the network or by the network adapter below.
func AdapterOf(name string) string { return "vEthernet (" + name + ")" }

// BelowAdapter is the network adapter after which Windows named the host's own adapter name, or name itself.
func BelowAdapter(name string) string {
	if rest, ok := strings.CutPrefix(name, "vEthernet ("); ok {
		return strings.TrimSuffix(rest, ")")
	}
	return name
}

// planWindows starts the plan of Windows modes. Docker has no IPv6 networks there (moby libnetwork/drivers/windows, processIPAM; moby/moby#48287), so
// that an IPv6 range stays unused, which the Manager reports.
func planWindows(cfg Config, facts Facts) (State, error) {
	s, err := planRanges(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	n := s.Network
	if n.Subnets[0].Addr().Is6() {
		return s, fmt.Errorf("spec.podCIDRs has %s only; Docker on Windows supports only IPv4 networks", n.Subnets[0])
	}
	s.Unused = n.Subnets[1:]
	n.Subnets, n.Gateways = n.Subnets[:1], n.Gateways[:1]
	n.Options[optionName] = n.Name
	s.Ready = ready("pods get addresses of %s", n.Subnets[0])
	return s, cfg.CheckWindows()
}

// OwnNetwork is the network in HNS on which the kubelet itself creates the pods' endpoints; "": the engine creates them.
func (cfg Config) OwnNetwork() string {
	switch {
	case cfg.Platform.OS != "windows":
	case cfg.Mode == Overlay:
		return vxlan.DeviceName(true)
	case (cfg.Mode == HostGateway || cfg.Mode == Upstream) && cfg.ownsBridge():
		return cfg.EngineName()
	}
	return ""
}

// kind is the configured kind of network or this build's default.
func (cfg Config) kind() WindowsNetwork {
	switch {
	case cfg.Windows != "":
		return cfg.Windows
	case cfg.Platform.Build < server2019:
		return Transparent
	}
	return L2Bridge
}

// unusedRange is the reason of the Event about State.Unused.
const unusedRange = "PodCIDRUnused"

// unused describes the effect of State.Unused for this node; "": none.
func (s State) unused() string {
	if len(s.Unused) == 0 {
		return ""
	}
	return fmt.Sprintf("Docker on Windows has only IPv4 networks (moby/moby#48287): %s, and none of %s. They are no endpoints of IPv6 Services", s.Ready.Message, Join(s.Unused))
}

// CheckWindows checks that this build of Windows has the configured network. On other systems it returns nil.
func (cfg Config) CheckWindows() error {
	build := cfg.Platform.Build
	switch {
	case cfg.Platform.OS != "windows":
		return nil
	case cfg.Mode == Overlay && build < server2019:
		return fmt.Errorf("--network-mode=%s needs Windows Server 2019 (build %d) with the updates from KB4489899 (March 2019) on: HNS of build %d does not support subnets of other nodes; want %s or %s",
			Overlay, server2019, build, HostGateway, Upstream)
	case cfg.Mode == Overlay && cfg.Windows != "":
		return fmt.Errorf("--windows-network=%s: network mode %s makes its own kind of network; remove one of the two flags", cfg.Windows, Overlay)
	case cfg.Windows == L2Bridge && build < server2019:
		return fmt.Errorf("--windows-network=%s needs Windows Server 2019 (build %d): HNS of build %d does not give the host the gateway's address; want %s", L2Bridge, server2019, build, Transparent)
	case cfg.Windows == NAT && build < server2019:
		return fmt.Errorf("--windows-network=%s: build %d of Windows can have only one such network, Docker's (docker/for-win#726); want %s, or CONTAINER_NETWORK=nat", NAT, build, Transparent)
	case !slices.Contains([]WindowsNetwork{"", L2Bridge, Transparent, NAT}, cfg.Windows):
		return fmt.Errorf("--windows-network=%s is not known; want %s, %s or %s", cfg.Windows, L2Bridge, Transparent, NAT)
	}
	return nil
}

// keptInside are the IPv4 ranges to which OutBoundNAT lets the pods of c keep their address.
func keptInside(cfg Config, facts Facts, c netip.Prefix) (keep []netip.Prefix) {
	for _, p := range slices.Concat(nonMasquerade(cfg, facts, c), facts.services(cfg)) {
		if p = p.Masked(); p.Addr().Is4() && !p.Addr().IsMulticast() && !slices.Contains(keep, p) {
			keep = append(keep, p)
		}
	}
	return keep
}

// extends says that a list of exceptions of OutBoundNAT contains all those of the engine's network. hns.Bridge adds new ones to its endpoints, so
// that the network need not be replaced.
func extends(want, have string) bool {
	for text := range strings.SplitSeq(have, ",") {
		old, err := netip.ParsePrefix(text)
		holds := func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && p.Bits() <= old.Bits() && p.Contains(old.Addr())
		}
		if err != nil || !slices.ContainsFunc(strings.Split(want, ","), holds) {
			return false
		}
	}
	return true
}

func (s State) printWindows(b *strings.Builder) {
	if o := s.Overlay; o != nil {
		fmt.Fprintf(b, "HNS network: %s, overlay on adapter %q, %s, gateway %s is HNS', VNI %d, UDP port %d, from %s\n", o.Name, o.Adapter, o.Subnet, o.Gateway, o.VNI, vxlan.Port, o.Provider)
		fmt.Fprintf(b, "source VIP of the service proxy: %s\n", hns.SourceVIP(o.Subnet))
		fmt.Fprintf(b, "masquerade: except to %s\n", Join(o.Keep))
		if len(o.Services) > 0 {
			fmt.Fprintf(b, "stays in the overlay: %s\n", Join(o.Services))
		}
	}
	if h := s.Bridge; h != nil {
		fmt.Fprintf(b, "HNS network: %s, l2bridge on adapter %q, %s, gateway %s is an endpoint of the host\n", h.Name, h.Adapter, h.Subnet, h.Gateway)
		if h.Router.IsValid() {
			fmt.Fprintf(b, "HNS' own gateway: %s; the kubelet makes the pods' endpoints, which name the host's\nmasquerade: except to %s\n", h.Router, Join(h.Keep))
		}
		fmt.Fprintf(b, "pods' traffic by the host: %s\n", Join(h.Routes))
	}
	for _, addr := range s.Forward {
		fmt.Fprintf(b, "forwarding: where the host has %s\n", addr)
	}
}
