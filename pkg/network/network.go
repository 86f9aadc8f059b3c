// Package network creates and maintains this node's pod network (kubelet). Package routes manages the routes to other nodes.
//
//	own Node, engine, host --> Facts --Plan--> State --Maker.Make--> engine network, packet filter, addresses, HNS --> Ready, Join
//	^                                                                      |
//	+---------------- hints, every 30 seconds ----------------------------+
//
// Plan is pure. The Manager is the loop around it: it collects the Facts, plans, has the mode's Maker implement the State, and reports whether pods
// can start. Its dependencies are the interfaces in parts.go; package docker implements Engine, package hostnet Host and Windows.
//
// # Modes
//
// A mode is one file: a function that plans it and a type that implements Maker.
//
//	bridge.go     Linux: host-gateway, upstream and overlay, on a bridge that the engine creates
//	podbridge.go  Linux: the same, with interfaces and a bridge that we create
//	switch.go     Windows: host-gateway and upstream, on a virtual switch (l2bridge, transparent, nat)
//	overlay.go    Windows: overlay, on a network of HNS with endpoints that we create
//	external.go   an existing network of the engine
//	plugins.go    CNI plugins
//
// A new mode is a new file of that form and one line in the table modes, which both Plan and New read. Nothing else dispatches on Mode. If the engine
// does not connect the pods, the mode implements Attachments too and returns newAttacher from Attacher. Further parts of a mode (netlink, records on
// disk) go into a package below that does not import this one, such as iptables and endpoints.
//
// Packages below: iptables (packet filter rules of Linux), podlink (pods' interfaces on Linux), endpoints (pods' endpoints on overlays of Windows).
// Packages above: hostnet (system calls, implements Host and Windows), doctor (finds faults).
package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Mode says who creates the pod network and the routes to other nodes.
type Mode string

const (
	HostGateway Mode = "host-gateway" // we create the network, the proxy the routes to other nodes
	Upstream    Mode = "upstream"     // we create the network, a router knows the pod CIDRs
	Overlay     Mode = "overlay"      // we create the network and a VXLAN device, the proxy the entries of other nodes
	External    Mode = "external"     // an existing engine network; we create nothing
	CNI         Mode = "cni"          // CNI plugins create the network of each pod
)

// Config has the administrator's choices.
type Config struct {
	Mode     Mode
	Platform pod.Platform
	// External is the engine network of mode External (CONTAINER_NETWORK).
	External string
	// ConfDir is where mode CNI reads the network's configuration.
	ConfDir string
	// NodeIPs are this node's addresses, primary first. A tunnel uses the first address of its family.
	NodeIPs []netip.Addr
	// Name is the name of the engine network that we create; "": winkube.
	Name string
	// Windows is the kind of network on Windows; "": l2bridge, before Server 2019 transparent.
	Windows WindowsNetwork
	// Adapter is the Windows network adapter for the network; "": the one with the node's address.
	Adapter string
	// Interfaces says who creates the pods' interfaces on Linux; "": the engine.
	Interfaces Interfaces
	// UplinkFile is where Windows saves the node's own static address while creating a network might lose it; "": nowhere.
	UplinkFile string
	// Services are the ranges of Services' addresses; none: those learned from the cluster. Pods of Windows networks reach them through their host.
	Services []netip.Prefix
	// NonMasquerade are the ranges to which pods' traffic keeps the pod's address, above all the cluster's pod range. Empty: the private range (RFC
	// 1918, RFC 6598, RFC 4193) that contains this node's pod CIDR, or that pod CIDR alone, and learned pod ranges.
	NonMasquerade []netip.Prefix
}

// Facts are what Plan needs to know about this node.
type Facts struct {
	PodCIDRs      []string // spec.podCIDRs of the Node, at most one per family
	EngineVersion string   // 20.10.24; "" is treated as an old engine
	MTU           int      // of the interface with the node's address, in bytes; 0: unknown, treated as 1500
	Adapter       string   // that interface's name; "": unknown
	// Learned from the cluster; empty: not learned yet.
	Services []netip.Prefix // ranges of Services' addresses, used if the Config has none
	Pods     []netip.Prefix // ranges of pods, used if the Config has no NonMasquerade
}

// services are the ranges of Services' addresses: the administrator's, or else the learned ones.
func (f Facts) services(cfg Config) []netip.Prefix {
	if len(cfg.Services) > 0 {
		return cfg.Services
	}
	return f.Services
}

// Condition is the Node's condition about the network.
type Condition struct {
	Ready           bool
	Reason, Message string
}

// Gateway is an address that the host itself must have on an interface.
type Gateway struct {
	Interface string // such as vEthernet (HNSTransparent)
	Address   netip.Prefix
}

// State is everything that this host should have for its pods. The zero State is empty.
type State struct {
	Join     string             // engine network for pods; "": none yet
	Network  *pod.EngineNetwork // to create; nil: none
	Rules    []iptables.Rules   // IPv4 first
	Gateways []Gateway
	Devices  []vxlan.Device   // tunnel devices, IPv4 first
	Bridge   *hns.Bridge      // the network in HNS below the engine's, to create first; nil: the engine creates it
	Overlay  *hns.Overlay     // the network in HNS on which we create the pods' endpoints; nil: none
	Links    *podlink.Network // the bridge of Linux on which we create the pods' interfaces; nil: the engine creates them
	Forward  []netip.Addr     // addresses of the interfaces that need forwarding
	Unused   []netip.Prefix   // ranges of the Node that this node does not use for pods
	Ready    Condition
}

const (
	defaultName = hns.KubeletsNetwork // on Linux too
	bridgeName  = "winkube0"
	// LabelPods marks the engine network that we may replace when no container uses it.
	LabelPods = "io.winkube.network"
)

// Join formats ranges for people: 10.0.0.0/8, fc00::/7.
func Join(list []netip.Prefix) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// String formats the State for people (`kubelet network plan`).
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ready: %t (%s: %s)\n", s.Ready.Ready, s.Ready.Reason, s.Ready.Message)
	if s.Join != "" {
		fmt.Fprintf(&b, "pods join: %s\n", s.Join)
	}
	if n := s.Network; n != nil {
		fmt.Fprintf(&b, "engine network: %s, driver %s\n", n.Name, n.Driver)
		for i, c := range n.Subnets {
			fmt.Fprintf(&b, "  subnet %s, gateway %s\n", c, n.Gateways[i])
		}
		for _, m := range []struct {
			what string
			kv   map[string]string
		}{{"option", n.Options}, {"label", n.Labels}} {
			for _, k := range sortedKeys(m.kv) {
				fmt.Fprintf(&b, "  %s %s=%s\n", m.what, k, m.kv[k])
			}
		}
	}
	if n := s.Links; n != nil {
		fmt.Fprintf(&b, "bridge of the kubelet: %s, mtu %d\n", n.Bridge, n.MTU)
		for _, r := range n.Ranges {
			fmt.Fprintf(&b, "  subnet %s, gateway %s\n", r.Subnet, r.Gateway)
		}
	}
	for _, r := range s.Rules {
		fmt.Fprintf(&b, "forward: from and to %s\n", r.PodCIDR)
		if len(r.NonMasquerade) > 0 {
			fmt.Fprintf(&b, "masquerade: from %s except to %s\n", r.PodCIDR, Join(r.NonMasquerade))
		}
	}
	s.printWindows(&b)
	if len(s.Unused) > 0 {
		fmt.Fprintf(&b, "no addresses of: %s\n", Join(s.Unused))
	}
	for _, g := range s.Gateways {
		fmt.Fprintf(&b, "address: %s on %s\n", g.Address, g.Interface)
	}
	for _, d := range s.Devices {
		fmt.Fprintf(&b, "tunnel: %s, VNI %d, UDP port %d\n", d, vxlan.VNI, vxlan.Port)
	}
	b.WriteString(vxlan.Text(vxlan.Annotations(s.Devices, nil)))
	return b.String()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
