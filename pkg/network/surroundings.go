package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Surroundings are the host's interfaces and routes.
type Surroundings struct {
	Links  []Link
	Routes []HostRoute
}

// Link is one interface of the host.
type Link struct {
	Name       string
	Up         bool
	MTU        int // bytes
	Addrs      []netip.Prefix
	Strict     bool // Linux, with addresses: drops packets if the route back to their sender uses another interface (rp_filter 1)
	Forwarding bool // Windows
	WeakSend   bool // Windows: answers from its addresses may leave by other interfaces
	Services   int  // Windows: number of service addresses
	Tunnel     bool // Linux: a VXLAN with our number and port
}

// Add adds an address to the interface. A single address that is never a source belongs to a Service.
func (l *Link) Add(p netip.Prefix, skipAsSource bool) {
	l.Addrs = append(l.Addrs, p)
	if skipAsSource && p.IsSingleIP() {
		l.Services++
	}
}

// HostRoute is one route of the main table.
type HostRoute struct {
	Dst  netip.Prefix
	Via  netip.Addr // invalid: directly connected
	Link string
	Ours bool // written by the proxy
}

// String formats the route like `ip route`.
func (r HostRoute) String() string {
	text := r.Dst.String()
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	if r.Link != "" {
		text += " dev " + r.Link
	}
	return text
}

// Named returns the interface of that name; nil: there is none.
func (s Surroundings) Named(name string) *Link {
	for i := range s.Links {
		if s.Links[i].Name == name {
			return &s.Links[i]
		}
	}
	return nil
}

// With returns the interface that has an address; nil: none has it.
func (s Surroundings) With(a netip.Addr) *Link {
	for i := range s.Links {
		if slices.ContainsFunc(s.Links[i].Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return &s.Links[i]
		}
	}
	return nil
}

// PodBridge returns the ranges of the pods' bridge on Linux; none: there is no bridge.
func (s Surroundings) PodBridge() (out []netip.Prefix) {
	if l := s.Named(bridgeName); l != nil {
		for _, p := range l.Addrs {
			if !p.Addr().IsLinkLocalUnicast() {
				out = append(out, p.Masked())
			}
		}
	}
	return out
}

// uplink is the interface with the node's first address; the zero Link: none has it.
func (s Surroundings) uplink(nodeIPs []netip.Addr) Link {
	if len(nodeIPs) > 0 {
		if l := s.With(nodeIPs[0]); l != nil {
			return *l
		}
	}
	return Link{}
}

// Adapter is the name of the interface with the node's first address; "": none has it.
func (s Surroundings) Adapter(nodeIPs []netip.Addr) string { return s.uplink(nodeIPs).Name }

// MTU is the MTU of the interface with the node's first address, in bytes; 0: unknown.
func (s Surroundings) MTU(nodeIPs []netip.Addr) int { return s.uplink(nodeIPs).MTU }

// Overlap is a foreign object in a pod range.
type Overlap struct {
	What   string
	Remedy string // a command, or what to configure
}

// Overlaps finds foreign objects in the range c of the pod network s: addresses, engine networks, routes. It is pure.
func Overlaps(s State, c netip.Prefix, networks []pod.EngineNetwork, around Surroundings, platform pod.Platform) (out []Overlap) {
	for _, l := range around.Links {
		for _, a := range l.Addrs {
			if c.Contains(a.Addr()) && !s.ownLink(l.Name) {
				out = append(out, Overlap{fmt.Sprintf("the node's pod CIDR %s holds the address %s of %q", c, a, l.Name),
					fmt.Sprintf("give this node another pod CIDR, or %q another address", l.Name)})
			}
		}
	}
	for _, n := range networks {
		// Docker 29 on Windows shows 0.0.0.0/0 for the network nat until its next start: HNS has chosen the range.
		if i := slices.IndexFunc(n.Subnets, func(p netip.Prefix) bool { return p.Bits() > 0 && c.Overlaps(p) }); i >= 0 && n.Name != s.Join && !s.adopted(n) {
			out = append(out, Overlap{fmt.Sprintf("the engine's network %q has %s, which overlaps with the node's pod CIDR %s", n.Name, n.Subnets[i], c),
				"docker network rm " + n.Name})
		}
	}
	for _, r := range around.Routes {
		if c.Contains(r.Dst.Addr()) && r.Dst.Bits() >= c.Bits() && !s.ownLink(r.Link) {
			remedy := fmt.Sprintf("ip route del %s", r)
			if platform.OS == "windows" {
				remedy = fmt.Sprintf("route delete %s", r.Dst.Addr())
			}
			out = append(out, Overlap{fmt.Sprintf("another program's route, %s, covers addresses of the node's pod CIDR %s", r, c), remedy})
		}
	}
	return out
}

// Ranges are the pod ranges that must contain no foreign objects; none if HNS itself has the pods' gateway and routes (nat, overlay).
func (s State) Ranges() []netip.Prefix {
	switch {
	case len(s.Gateways) == 0:
		return nil
	case s.Network != nil:
		return s.Network.Subnets
	case s.Bridge != nil:
		return []netip.Prefix{s.Bridge.Subnet}
	case s.Links != nil:
		return s.Links.Subnets()
	}
	return nil
}

// adopted says whether a network of the engine uses our bridge: the engine found it in HNS, or on Linux created it before us.
func (s State) adopted(n pod.EngineNetwork) bool {
	return s.Bridge != nil && Ours(n, s.Bridge.Name) || s.Links != nil && n.Labels[LabelPods] != ""
}

// ownLink says whether an interface belongs to the pod network.
func (s State) ownLink(name string) bool {
	return slices.ContainsFunc(s.Gateways, func(g Gateway) bool { return g.Interface == name }) ||
		slices.ContainsFunc(s.Devices, func(d vxlan.Device) bool { return d.Name == name })
}

// overlapping is the Node's condition if the pods' ranges contain foreign objects.
func overlapping(s State, networks []pod.EngineNetwork, around Surroundings, platform pod.Platform) Condition {
	var found []string
	for _, c := range s.Ranges() {
		for _, o := range Overlaps(s, c, networks, around, platform) {
			found = append(found, o.What+" (fix: "+o.Remedy+")")
		}
	}
	if len(found) == 0 {
		return Condition{}
	}
	return Condition{Reason: rangeOverlaps, Message: strings.Join(found, "; ")}
}

// lacksAdapter is the Node's condition if the adapter of --interface is missing; empty if the host's adapters are unknown.
func lacksAdapter(cfg Config, around Surroundings) Condition {
	var names []string
	for _, l := range around.Links {
		names = append(names, strconv.Quote(l.Name))
		if l.Name == cfg.Adapter || l.Name == AdapterOf(cfg.Adapter) {
			return Condition{}
		}
	}
	if cfg.Adapter == "" || len(names) == 0 {
		return Condition{}
	}
	return Condition{Reason: noAdapter, Message: fmt.Sprintf("--interface=%s: this host has no such network adapter; it has %s", cfg.Adapter, strings.Join(names, ", "))}
}
