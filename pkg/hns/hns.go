// Package hns is the Host Networking Service of Windows as plain data: networks, endpoints, load balancers, and a Client that lists, makes
// and removes them. It decides nothing.
//
//	proxy/hnslb --> Client --> HNS
//	network --> Bridge, Overlay --> HNS          routes --> RemoteSubnet --> HNS
package hns

import (
	"context"
	"errors"
	"net/netip"
)

// Errors that callers tell apart. A Client wraps them.
var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("not found in HNS")
	// ErrDown: the service does not answer. What it has is unknown then, and never nothing.
	ErrDown = errors.New("HNS is not running (Start-Service hns)")
	// ErrNoContainers: there is no HNS at all.
	ErrNoContainers = errors.New("this Windows lacks the feature Containers (Install-WindowsFeature Containers; Restart-Computer)")
	// ErrOld: this Windows has no second version of HNS' interface, and so no load balancers or l2bridge networks of ours.
	ErrOld = errors.New("this Windows has no computenetwork.dll (Windows Server 2019 has)")
	// ErrNoOverlay: this HNS has no policy RemoteSubnetRoute, by which overlays know other hosts (9.2 is the first that has: hcsshim hcnglobals.go).
	ErrNoOverlay = errors.New("this HNS does not support subnets of other hosts; install the updates of Windows Server 2019 from KB4489899 (March 2019) on")
	// ErrUnsettled: HNS has made the network and not yet said by which address and hardware address others reach it.
	ErrUnsettled = errors.New("HNS has not finished creating the network yet")
	// ErrDiffers: the network is there, with another range.
	ErrDiffers = errors.New("the overlay network has another range")
	// ErrElsewhere: the network is there, on an adapter with another address.
	ErrElsewhere = errors.New("not from the node's address")
	// ErrNoHostRoute: the network is there and its host does not reach the pods on it.
	ErrNoHostRoute = errors.New("HNS has no policy HostRoute: only exec probes of this kubelet reach its pods")
)

// Network is a network of the host, with the subnets of other hosts that an overlay knows.
type Network struct {
	ID, Name string
	Overlay  bool
	Subnet   netip.Prefix // the first of its ranges; invalid: it has none
	Remote   []RemoteSubnet
}

// RemoteSubnet says which host has a range of an overlay's addresses (policy RemoteSubnetRoute).
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr
	MAC      [6]byte // of that host's end of the tunnel: HNS' distributed router, or the VXLAN device of Linux
}

// Endpoint is an address in a network: on this host, or Remote.
type Endpoint struct {
	ID       string // "": not made yet
	Network  string // the ID of its network
	Addrs    []netip.Addr
	MAC      string // 02-11-0a-f4-02-07
	Remote   bool
	Provider netip.Addr // of an overlay's: the host that has it
}

// LoadBalancer sends what comes to one front to endpoints, all at one port.
type LoadBalancer struct {
	ID             string     // "": not made yet
	VIP            netip.Addr // the zero Addr: all of the host's (node port)
	Protocol       uint32     // 6 TCP, 17 UDP, 132 SCTP
	ExternalPort   uint16
	InternalPort   uint16
	SourceVIP      netip.Addr // of overlays: the address from which this host asks
	Endpoints      []string   // IDs
	DSR            bool       // answers go to the client directly
	IPv6           bool
	ExternalIP     bool // the VIP is no cluster IP
	LocalRouted    bool // the host's own programs reach it too
	ClientAffinity bool
}

// Client lists, makes and removes. Objects that are gone already are removed without error. Errors wrap ErrDown when the service does not
// answer.
type Client interface {
	Network(ctx context.Context, name string) (Network, error)
	Endpoints(ctx context.Context) ([]Endpoint, error) // of all networks
	LoadBalancers(ctx context.Context) ([]LoadBalancer, error)
	CreateEndpoint(ctx context.Context, network Network, e Endpoint) (id string, err error)
	DeleteEndpoint(ctx context.Context, id string) error
	CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (id string, err error)
	// ReplaceLoadBalancer makes the load balancer with the ID of lb what lb says: in place where HNS can, else by making another.
	ReplaceLoadBalancer(ctx context.Context, lb LoadBalancer) (id string, err error)
	DeleteLoadBalancer(ctx context.Context, id string) error
}
