// Package hns models the Windows Host Networking Service as plain data: networks, endpoints, load balancers, and a
// Client that lists, creates and removes them. It decides nothing.
//
//	proxy/hnslb --> Client --> HNS
//	network --> Bridge, Overlay --> HNS          routes --> RemoteSubnet --> HNS
package hns

import (
	"context"
	"errors"
	"net/netip"
)

// KubeletsNetwork is the name of the l2bridge or transparent network that the kubelet makes for pods. (An overlay is named after its tunnel.)
const KubeletsNetwork = "winkube"

// Errors that callers distinguish. A Client wraps them.
var (
	// ErrNotFound: the object does not exist.
	ErrNotFound = errors.New("not found in HNS")
	// ErrDown: the service does not respond. Its state is then unknown, never empty.
	ErrDown = errors.New("HNS is not running (Start-Service hns)")
	// ErrNoContainers: this host has no HNS.
	ErrNoContainers = errors.New("this Windows lacks the feature Containers (Install-WindowsFeature Containers; Restart-Computer)")
	// ErrOld: this Windows lacks the second version of the HNS API, and so our load balancers and l2bridge networks.
	ErrOld = errors.New("this Windows has no computenetwork.dll (Windows Server 2019 has)")
	// ErrNoOverlay: this HNS lacks the policy RemoteSubnetRoute, with which overlays reach other hosts (9.2 is the
	// first that has it: hcsshim hcnglobals.go).
	ErrNoOverlay = errors.New("this HNS does not support subnets of other hosts; install the updates of Windows Server 2019 from KB4489899 (March 2019) on")
	// ErrUnsettled: HNS has created the network but does not report its address and hardware address for other hosts
	// yet.
	ErrUnsettled = errors.New("HNS has not finished creating the network yet")
	// ErrDiffers: the network exists with another range, gateway or kind.
	ErrDiffers = errors.New("the pods' network in HNS differs")
	// ErrElsewhere: the network exists on an adapter with another address.
	ErrElsewhere = errors.New("not from the node's address")
	// ErrNoHostRoute: the network exists, but the host does not reach the pods on it.
	ErrNoHostRoute = errors.New("HNS has no policy HostRoute: only exec probes of this kubelet reach its pods")
)

// Network is a network of the host, with an overlay's subnets of other hosts.
type Network struct {
	ID      ID
	Name    string
	Overlay bool
	Subnet  netip.Prefix // its first range; invalid: none
	Remote  []RemoteSubnet
}

// RemoteSubnet maps a range of an overlay's addresses to the host that has it (policy RemoteSubnetRoute).
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr
	MAC      [6]byte // of that host's tunnel end: HNS' distributed router, or the VXLAN device of Linux
}

// Endpoint is an address in a network: on this host, or Remote.
type Endpoint struct {
	ID       ID // zero: not created yet
	Network  ID
	Addrs    []netip.Addr
	MAC      string // 02-11-0a-f4-02-07
	Remote   bool
	Provider netip.Addr // for overlays: the host of the endpoint
}

// LoadBalancer forwards the traffic of one front to endpoints, all at one port.
type LoadBalancer struct {
	ID             ID         // zero: not created yet
	VIP            netip.Addr // the zero Addr: all addresses of the host (node port)
	Protocol       uint32     // 6 TCP, 17 UDP, 132 SCTP
	ExternalPort   uint16
	InternalPort   uint16
	SourceVIP      netip.Addr // for overlays: source address of this host's connections
	Endpoints      []ID
	DSR            bool // replies go directly to the client
	IPv6           bool
	ExternalIP     bool // the VIP is not a cluster IP
	LocalRouted    bool // reachable from the host's own programs too
	ClientAffinity bool
}

// Client lists, creates and removes objects. Removing a missing object is not an error. Errors wrap ErrDown if the
// service does not respond.
type Client interface {
	Network(ctx context.Context, name string) (Network, error)
	Endpoints(ctx context.Context) ([]Endpoint, error) // of all networks
	LoadBalancers(ctx context.Context) ([]LoadBalancer, error)
	CreateEndpoint(ctx context.Context, network Network, e Endpoint) (id ID, err error)
	DeleteEndpoint(ctx context.Context, id ID) error
	CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (id ID, err error)
	// ReplaceLoadBalancer changes the load balancer with lb's ID to lb: in place if HNS can, else by creating another.
	ReplaceLoadBalancer(ctx context.Context, lb LoadBalancer) (id ID, err error)
	DeleteLoadBalancer(ctx context.Context, id ID) error
}
