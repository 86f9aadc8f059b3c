package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Holders says who holds addresses beside Services: what a Service may not have as an external or load balancer address. It is plain data.
type Holders struct {
	ServiceRanges []netip.Prefix   // of the cluster's ServiceCIDRs; none: not known, and none is assumed
	PodRanges     []netip.Prefix   // all that pods may have (--cluster-cidr)
	APIServers    []netip.AddrPort // as this host reaches them; the endpoints of the Service default/kubernetes are added
	Host          Host
	Ports         []ReservedPort // of this host, beside ReservedPorts
	// NodePortAddresses limits the addresses of this host on which node ports are served; empty: all of them.
	NodePortAddresses []netip.Prefix
	Nodes             []NodeClaim // one may be this node's own
	// Late are claims of Nodes that came after a Service had asked for the address. They are not believed.
	Late []LateClaim
}

// Host is what this host has.
type Host struct {
	Addresses []netip.Addr // its own, without those that the proxy has added
	NextHops  []netip.Addr // of its routes, without those that the proxy has added
}

// NodeClaim is what a Node says of itself. Its kubelet writes it, so it is believed only as far as it takes nothing from others.
type NodeClaim struct {
	Name      string
	Created   time.Time
	Addresses []netip.Addr   // status.addresses, at most maxNodeAddresses of them
	Primary   []netip.Addr   // the first InternalIP of each family
	PodRanges []netip.Prefix // spec.podCIDRs, one of each family
	Dropped   int            // so many addresses more are not believed
}

// LateClaim is the claim of one Node to one address.
type LateClaim struct {
	Addr netip.Addr
	Node string
}

// ReservedPort is a TCP port of a node that no Service may have at a node's address.
type ReservedPort struct {
	Port uint16
	Of   string
}

// ReservedPorts are those of every node, whoever listens at the moment: a Service that got one while its owner restarts would keep it.
var ReservedPorts = []ReservedPort{
	{22, "ssh"},
	{2379, "etcd"},
	{2380, "etcd"},
	{10248, "the kubelet"},
	{10249, "the proxy"},
	{10250, "the kubelet"},
	{10255, "the kubelet"},
	{10256, "the proxy"},
	{10257, "the controller manager"},
	{10259, "the scheduler"},
}

const (
	// maxNodeAddresses of one Node are believed: real ones have a handful, and a Node may not make others keep thousands.
	maxNodeAddresses = 32
	// Pod ranges of other Nodes that are wider are not believed without --cluster-cidr, for a Node may choose its own.
	widestRange4, widestRange6 = 16, 48
)

// NodeClaimOf is what a Node says of itself.
func NodeClaimOf(node *v1.Node) NodeClaim {
	claim := NodeClaim{Name: node.Name, Created: node.CreationTimestamp.Time}
	for _, a := range node.Status.Addresses {
		addr, ok := parseIP(a.Address)
		if !ok || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
			continue
		}
		sameFamily := func(p netip.Addr) bool { return p.Is4() == addr.Is4() }
		if a.Type == v1.NodeInternalIP && !slices.ContainsFunc(claim.Primary, sameFamily) {
			claim.Primary = append(claim.Primary, addr)
		}
		switch {
		case slices.Contains(claim.Addresses, addr):
		case len(claim.Addresses) < maxNodeAddresses:
			claim.Addresses = append(claim.Addresses, addr)
		default:
			claim.Dropped++
		}
	}
	for _, text := range node.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		sameFamily := func(have netip.Prefix) bool { return have.Addr().Is4() == p.Addr().Is4() }
		if err == nil && !slices.ContainsFunc(claim.PodRanges, sameFamily) {
			claim.PodRanges = append(claim.PodRanges, p.Masked())
		}
	}
	slices.SortFunc(claim.Addresses, netip.Addr.Compare)
	return claim
}

func (n *NodeClaim) equal(o *NodeClaim) bool {
	return n.Name == o.Name && n.Created.Equal(o.Created) && n.Dropped == o.Dropped && slices.Equal(n.Addresses, o.Addresses) &&
		slices.Equal(n.Primary, o.Primary) && slices.Equal(n.PodRanges, o.PodRanges)
}

// String is one line for each kind of holder, sorted.
func (h *Holders) String() string {
	var b strings.Builder
	line := func(what, list string) {
		if list != "" {
			fmt.Fprintf(&b, "%s: %s\n", what, list)
		}
	}
	line("service ranges", join(sorted(h.ServiceRanges, netip.Prefix.Compare)))
	line("pod ranges", join(sorted(h.PodRanges, netip.Prefix.Compare)))
	line("API servers", join(sorted(h.APIServers, netip.AddrPort.Compare)))
	line("this host", join(sorted(h.Host.Addresses, netip.Addr.Compare)))
	line("next hops", join(sorted(h.Host.NextHops, netip.Addr.Compare)))
	for _, n := range sorted(h.Nodes, func(a, b NodeClaim) int { return cmp.Compare(a.Name, b.Name) }) {
		line("Node "+n.Name, strings.Trim(join(n.Addresses)+" "+join(n.PodRanges), " "))
	}
	for _, l := range sorted(h.Late, compareLate) {
		line("not believed", fmt.Sprintf("Node %s has %s", l.Node, l.Addr))
	}
	return b.String()
}

func compareLate(a, b LateClaim) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Node, b.Node))
}

func sorted[T any](list []T, compare func(a, b T) int) []T {
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return list
}

// reserved says who has a TCP port at every address of this host, "" when Services may have it.
func (h *Holders) reserved(protocol v1.Protocol, port uint16, own map[netip.Addr]bool, servers []netip.AddrPort) string {
	if protocol != v1.ProtocolTCP {
		return ""
	}
	for _, list := range [][]ReservedPort{h.Ports, ReservedPorts} {
		if i := slices.IndexFunc(list, func(r ReservedPort) bool { return r.Port == port }); i >= 0 {
			return list[i].Of
		}
	}
	if slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return s.Port() == port && own[s.Addr()] }) {
		return "the API server"
	}
	return ""
}
