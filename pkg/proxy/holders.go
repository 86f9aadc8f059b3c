package proxy

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/vxlan"
)

// Holders are the holders of addresses other than Services. Services cannot have these as external or load balancer
// addresses. It is plain data.
type Holders struct {
	ServiceRanges []netip.Prefix   // the cluster's ServiceCIDRs; none: unknown, and none is assumed
	PodRanges     []netip.Prefix   // all addresses that pods may have (--cluster-cidr)
	APIServers    []netip.AddrPort // as this host reaches them; the endpoints of the Service default/kubernetes are added
	Host          Host
	Ports         []ReservedPort // of this host, in addition to ReservedPorts
	// NodePortAddresses limits the addresses of this host that serve node ports; empty: all of them.
	NodePortAddresses []netip.Prefix
	Nodes             []NodeHolding // may include this node
	// Late are Nodes that reported an address after a Service had claimed it. Their claims are ignored.
	Late []NodeAddress
}

// Host is the state of this host.
type Host struct {
	Addresses []netip.Addr // its own addresses, without those that the proxy added
	NextHops  []netip.Addr // next hops of its routes, without those that the proxy added
}

// NodeHolding is what a Node reports as its own. Its kubelet writes it, so it is trusted only if it takes nothing from
// others.
type NodeHolding struct {
	Name      string
	Created   time.Time
	Addresses []netip.Addr   // status.addresses, at most maxNodeAddresses
	Primary   []netip.Addr   // the first InternalIP of each family
	PodRanges []netip.Prefix // spec.podCIDRs, one per family
	Dropped   int            // number of further addresses, which are ignored
	// KubeletPort is status.daemonEndpoints.kubeletEndpoint.port; 0: unknown. Only this node's counts.
	KubeletPort uint16
}

// NodeAddress is one address that one Node reports.
type NodeAddress struct {
	Addr netip.Addr
	Node string
}

// ReservedPort is a port of a node that no Service may have at a node's address.
type ReservedPort struct {
	Port     uint16
	Protocol v1.Protocol
	Of       string
}

func (r ReservedPort) is(front FrontKey) bool {
	return r.Port == front.port && r.Protocol == front.Protocol()
}

// ReservedPorts are reserved on every node even while nothing listens: a Service that got one while its owner restarts
// would keep it.
var ReservedPorts = []ReservedPort{
	{22, v1.ProtocolTCP, "ssh"},
	{2379, v1.ProtocolTCP, "etcd"},
	{2380, v1.ProtocolTCP, "etcd"},
	{vxlan.Port, v1.ProtocolUDP, "the overlay network"},
	{vxlan.LinuxPort, v1.ProtocolUDP, "the overlay network"},
	{10248, v1.ProtocolTCP, "the kubelet"},
	{10249, v1.ProtocolTCP, "the proxy"},
	{10250, v1.ProtocolTCP, "the kubelet"},
	{10255, v1.ProtocolTCP, "the kubelet"},
	{10256, v1.ProtocolTCP, "the proxy"},
	{10257, v1.ProtocolTCP, "the controller manager"},
	{10259, v1.ProtocolTCP, "the scheduler"},
}

const (
	// maxNodeAddresses is how many addresses of one Node are used: real ones have a handful, and a Node must not make
	// others store thousands.
	maxNodeAddresses = 32
	// Wider pod ranges of other Nodes are ignored without --cluster-cidr, because a Node may choose its own.
	widestRange4, widestRange6 = 16, 48
)

// NodeHoldingOf extracts what a Node reports as its own.
func NodeHoldingOf(node *v1.Node) NodeHolding {
	holding := NodeHolding{Name: node.Name, Created: node.CreationTimestamp.Time}
	for _, a := range node.Status.Addresses {
		addr, ok := parseIP(a.Address)
		if !ok || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
			continue
		}
		sameFamily := func(p netip.Addr) bool { return p.Is4() == addr.Is4() }
		if a.Type == v1.NodeInternalIP && !slices.ContainsFunc(holding.Primary, sameFamily) {
			holding.Primary = append(holding.Primary, addr)
		}
		switch {
		case slices.Contains(holding.Addresses, addr):
		case len(holding.Addresses) < maxNodeAddresses:
			holding.Addresses = append(holding.Addresses, addr)
		default:
			holding.Dropped++
		}
	}
	for _, text := range node.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		sameFamily := func(have netip.Prefix) bool { return have.Addr().Is4() == p.Addr().Is4() }
		if err == nil && !slices.ContainsFunc(holding.PodRanges, sameFamily) {
			holding.PodRanges = append(holding.PodRanges, p.Masked())
		}
	}
	slices.SortFunc(holding.Addresses, netip.Addr.Compare)
	if port := node.Status.DaemonEndpoints.KubeletEndpoint.Port; port > 0 && port <= math.MaxUint16 {
		holding.KubeletPort = uint16(port)
	}
	return holding
}

func (n *NodeHolding) equal(o *NodeHolding) bool {
	return n.Name == o.Name && n.Created.Equal(o.Created) && n.Dropped == o.Dropped && n.KubeletPort == o.KubeletPort && slices.Equal(n.Addresses, o.Addresses) &&
		slices.Equal(n.Primary, o.Primary) && slices.Equal(n.PodRanges, o.PodRanges)
}

// String prints one line for each kind of holder, sorted.
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
	for _, n := range sorted(h.Nodes, func(a, b NodeHolding) int { return cmp.Compare(a.Name, b.Name) }) {
		line("Node "+n.Name, strings.Trim(join(n.Addresses)+" "+join(n.PodRanges), " "))
	}
	for _, l := range sorted(h.Late, compareNodeAddress) {
		line("not believed", fmt.Sprintf("Node %s has %s", l.Node, l.Addr))
	}
	return b.String()
}

func compareNodeAddress(a, b NodeAddress) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Node, b.Node))
}

func sorted[T any](list []T, compare func(a, b T) int) []T {
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return list
}
