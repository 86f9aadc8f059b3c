package ipstack

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// overlayType is HNS's type of tunnel networks.
const overlayType = "Overlay"

// balancer is one port of an HNS load balancer.
type balancer struct {
	hns.LoadBalancer
	port hns.PortMapping
	host bool // it serves the host's own addresses
}

// String returns the balancer as it appears in a hop.
func (b *balancer) String() string {
	front := "the host's port"
	if !b.host {
		front = strings.Join(b.FrontendVIPs, ",")
	}
	return fmt.Sprintf("HNS' load balancer %s:%d", front, b.port.ExternalPort)
}

// dsr reports whether answers go directly to the client.
func (b *balancer) dsr() bool { return b.Flags&1 != 0 }

// balancer returns HNS's load balancer for a front.
func (h *Host) balancer(to netip.AddrPort, udp bool) *balancer {
	protocol := uint32(6)
	if udp {
		protocol = 17
	}
	for _, l := range h.hns.LoadBalancers {
		for _, p := range l.PortMappings {
			host := len(l.FrontendVIPs) == 0
			at := host && (to.Addr().IsUnspecified() || to.Addr() == h.Node) || slices.Contains(l.FrontendVIPs, to.Addr().String())
			if p.Protocol == protocol && p.ExternalPort == to.Port() && at {
				return &balancer{l, p, host}
			}
		}
	}
	return nil
}

// podAt returns the local endpoint with an address.
func (h *Host) podAt(addr netip.Addr) *hns.AttachedEndpoint {
	for i := range h.hns.Endpoints {
		if e := &h.hns.Endpoints[i]; e.Flags&1 == 0 && h.addressOf(e) == addr && addr.IsValid() {
			return e
		}
	}
	return nil
}

// addressOf returns the first address of an endpoint, or the zero Addr if it has none.
func (h *Host) addressOf(e *hns.AttachedEndpoint) netip.Addr {
	if len(e.IpConfigurations) == 0 {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(e.IpConfigurations[0].IpAddress) // HNS has validated it
	return addr
}

func (h *Host) networkOf(e *hns.AttachedEndpoint) *hns.Network {
	for i := range h.hns.Networks {
		if strings.EqualFold(h.hns.Networks[i].ID, e.HostComputeNetwork) {
			return &h.hns.Networks[i]
		}
	}
	return &hns.Network{}
}

func (h *Host) hostRoute(e *hns.AttachedEndpoint) bool {
	return slices.ContainsFunc(h.networkOf(e).Policies, func(p hns.Policy) bool { return p.Type == "HostRoute" })
}

// asking returns the pod that sends.
func (h *Host) asking() *hns.AttachedEndpoint {
	if h.Pod.IsValid() {
		return h.podAt(h.Pod)
	}
	for i := range h.hns.Endpoints {
		e := &h.hns.Endpoints[i]
		if e.Flags&1 == 0 && len(e.Attached) > 0 && !slices.Contains(e.Attached, "host") {
			return e
		}
	}
	return nil
}

// fromPod handles a packet from a pod: load balancers and policies at its switch port apply first, then its network.
func (w *walk) fromPod() Verdict {
	e := w.asking()
	if e == nil {
		return w.unknown("HNS has no pod that could ask")
	}
	n, to := w.networkOf(e), w.q.To
	w.src, w.sees = w.addressOf(e), "the pod's address"
	if to.Addr().IsUnspecified() { // a node port
		to = netip.AddrPortFrom(w.Node, to.Port())
	}
	b := w.balancer(to, w.q.UDP)
	switch {
	case b != nil && b.host:
		return w.unknown("whether a pod reaches a node port in HNS of the node that it is on is documented nowhere")
	case b != nil:
		w.hop("%s takes it at the pod's port of the virtual switch", b)
		return w.balance(b, e)
	case subnetOf(n).Contains(to.Addr()) && w.podAt(to.Addr()) != nil && w.holder(to.Addr()) == nil:
		w.hop("the virtual switch delivers it to a pod of the same network")
		return Yes
	}
	switch n.Type {
	case overlayType:
		return w.fromOverlay(n, e, to)
	case "L2Bridge", "L2Tunnel":
		if v, done := w.outboundNAT(e, to); done {
			return v
		}
	}
	via := gatewayOf(n, e)
	i := w.holder(via)
	if i == nil {
		return w.no("the pod's gateway %s is no address of the host: the packet leaves by the adapter, and no Service is there", via)
	}
	w.hop("the pod sends it to its gateway %s, which is on %q", via, i.Name)
	if n.Type == "NAT" && w.holder(to.Addr()) == nil {
		// WinNAT translates what leaves through another interface (Microsoft, "Windows container networking").
		w.sees = "the node's address"
		return w.sends(to)
	}
	return w.arrive(i, to)
}

// outboundNAT applies an endpoint's policies on a bridge. Destinations without an exception leave through the adapter with the host's address and
// never reach the host itself. A ROUTE policy leads to the host (microsoft/SDN, Kubernetes/windows/start-kubelet.ps1, which sets both for
// services).
func (w *walk) outboundNAT(e *hns.AttachedEndpoint, to netip.AddrPort) (v Verdict, done bool) {
	natted, routed := false, false
	for _, p := range e.Policies {
		var s struct {
			Exceptions        []string
			DestinationPrefix string
		}
		if json.Unmarshal(p.Settings, &s) != nil {
			continue
		}
		switch p.Type {
		case "OutBoundNAT":
			natted = natted || !containsAny(s.Exceptions, to.Addr())
		case "SDNRoute":
			routed = routed || containsAny([]string{s.DestinationPrefix}, to.Addr())
		}
	}
	switch {
	case natted && !routed && w.inside(to.Addr()):
		return w.no("OutBoundNAT sends it out of the adapter with the host's address, and nothing out there has %s: no policy ROUTE leads to the host", to.Addr()), true
	case natted && !routed && w.holder(to.Addr()) != nil:
		return w.unknown("OutBoundNAT sends it out of the adapter with the host's address, no policy ROUTE leads %s to this host: who announces the address out there answers", to.Addr()), true
	case natted && !routed:
		w.sees = "the node's address"
		w.hop("OutBoundNAT sends it out of the adapter with the host's address")
		return Yes, true
	}
	return Yes, false
}

func containsAny(prefixes []string, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(addr)
	})
}

// fromOverlay handles a packet from a pod on an overlay. Its router is HNS's, which knows the ranges of other hosts.
func (w *walk) fromOverlay(n *hns.Network, e *hns.AttachedEndpoint, to netip.AddrPort) Verdict {
	for _, p := range n.Policies {
		var s struct{ DestinationPrefix, ProviderAddress string }
		if p.Type == "RemoteSubnetRoute" && json.Unmarshal(p.Settings, &s) == nil && containsAny([]string{s.DestinationPrefix}, to.Addr()) {
			w.hop("the overlay's router sends it through the tunnel to %s", s.ProviderAddress)
			return Yes
		}
	}
	if w.holder(to.Addr()) != nil {
		return w.no("a pod of an overlay reaches no socket of its host: the gateway is HNS' own router")
	}
	if v, done := w.outboundNAT(e, to); done {
		return v
	}
	return w.no("the overlay knows no host that has %s", to.Addr())
}

// subnetOf returns the first range of a network.
func subnetOf(n *hns.Network) netip.Prefix {
	for _, ipam := range n.Ipams {
		for _, s := range ipam.Subnets {
			if p, err := netip.ParsePrefix(s.IpAddressPrefix); err == nil {
				return p
			}
		}
	}
	return netip.Prefix{}
}

// gatewayOf returns the next hop for destinations outside the endpoint's range: that of the endpoint's default route, otherwise the
// gateway of its network's range.
func gatewayOf(n *hns.Network, e *hns.AttachedEndpoint) netip.Addr {
	routes := slices.Clone(e.Routes)
	for _, ipam := range n.Ipams {
		for _, s := range ipam.Subnets {
			routes = append(routes, s.Routes...)
		}
	}
	for _, r := range routes {
		if addr, err := netip.ParseAddr(r.NextHop); err == nil && r.DestinationPrefix == "0.0.0.0/0" {
			return addr
		}
	}
	return netip.Addr{}
}

// balance handles a packet for an HNS load balancer. from is the sending pod; nil means another host.
func (w *walk) balance(b *balancer, from *hns.AttachedEndpoint) Verdict {
	v := Yes
	if !b.dsr() {
		// With direct server return the endpoint sees the pod (Kubernetes, "Networking on Windows"). Without it, HNS sends from one of 64 host ports that
		// it reserved for the load balancer (kubernetes/website#17930).
		w.sees = "the node's address"
		if b.SourceVIP != "" {
			w.sees = "the source VIP"
		}
	}
	for _, id := range b.HostComputeEndpoints {
		at := slices.IndexFunc(w.hns.Endpoints, func(e hns.AttachedEndpoint) bool { return strings.EqualFold(e.ID, id) })
		if at < 0 { // kubernetes/kubernetes#76316
			v = worse(v, w.no("one of its endpoints is gone from HNS"))
			continue
		}
		e := &w.hns.Endpoints[at]
		switch {
		case e.Flags&1 != 0:
			w.hop("to the remote endpoint %s", w.addressOf(e))
		case from != nil && e.ID == from.ID && b.dsr() && !w.loopback(e):
			v = worse(v, w.unknown("to the pod itself, with direct server return and no policy of loopback DSR (containernetworking/plugins#331)"))
		default:
			w.hop("to the pod %s", w.addressOf(e))
		}
	}
	return v
}

// loopback reports whether an endpoint may reach itself through a load balancer with direct server return: win-bridge gives it OutBoundNAT with
// itself as the destination (containernetworking/plugins pkg/hns netconf_windows.go, ApplyLoopbackDSRPolicy).
func (h *Host) loopback(e *hns.AttachedEndpoint) bool {
	return slices.ContainsFunc(e.Policies, func(p hns.Policy) bool {
		var s struct{ Destinations []string }
		return p.Type == "OutBoundNAT" && json.Unmarshal(p.Settings, &s) == nil && slices.Contains(s.Destinations, h.addressOf(e).String())
	})
}

// names reports whether a Windows Firewall rule names a listener's owner. SMB and http.sys listen in the kernel, as the program System (see the
// Windows rules "File and Printer Sharing (SMB-In)" and "World Wide Web Services (HTTP)").
func (h *Host) names(program, service, owner string) bool {
	if service != "" {
		return strings.EqualFold(service, owner)
	}
	if program == "" {
		return true
	}
	if owner == "SMB" || owner == "http.sys" {
		owner = "System"
	}
	return strings.EqualFold(program[strings.LastIndexByte(program, '\\')+1:], owner)
}

// blocked returns the Windows Firewall rule that stops a socket from receiving at an address. Block rules override allow rules (Microsoft,
// "Windows Firewall rules").
func (h *Host) blocked(l *Listener, to netip.AddrPort) string {
	for _, r := range h.firewall {
		if r.Direction != "in" || r.Action != "block" || !h.names(r.Program, r.Service, l.Owner) || !portIn(r.LocalPort, to.Port()) {
			continue
		}
		if r.LocalIP == "" || slices.ContainsFunc(strings.Split(r.LocalIP, ","), func(part string) bool { return inRange(part, to.Addr()) }) {
			return r.Name
		}
	}
	return ""
}

// inRange reports whether an address, a prefix or a range from-to contains addr.
func inRange(text string, addr netip.Addr) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Contains(addr)
	}
	from, to, _ := strings.Cut(text, "-")
	first, err := netip.ParseAddr(from)
	last, err2 := netip.ParseAddr(to)
	if err2 != nil {
		last = first
	}
	return err == nil && first.Compare(addr) <= 0 && addr.Compare(last) <= 0
}

// portIn reports whether a rule's port list, such as "80,443,30000-30002", contains a port; "" contains all.
func portIn(list string, port uint16) bool {
	if list == "" {
		return true
	}
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		last := first
		if isRange {
			last, _ = strconv.ParseUint(to, 10, 16) // netsh has validated it
		}
		if err == nil && uint64(port) >= first && uint64(port) <= last {
			return true
		}
	}
	return false
}
