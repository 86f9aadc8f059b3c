// Package network makes this node's pod network and keeps it (kubelet). Package routes has the way to other nodes.
//
//	own Node, engine, host --> Facts --Plan--> State --Maker.Make--> engine network, packet filter, addresses, HNS --> Ready, Join
//	                                             ^                                                                      |
//	                                             +---------------- hints, every 30 seconds ----------------------------+
//
// Plan is pure. The Manager is the loop around it: it gathers the Facts, plans, has the mode's Maker bring the State about, and reports whether
// pods can start. What it asks of others are the interfaces in parts.go; package docker has the Engine, package hostnet the Host and Windows.
//
// # Modes
//
// A mode is one file: a function that plans it and a type that implements Maker.
//
//	bridge.go     Linux: host-gateway, upstream and overlay, on a bridge that the engine makes
//	switch.go     Windows: host-gateway and upstream, on a virtual switch (l2bridge, transparent, nat)
//	overlay.go    Windows: overlay, on a network of HNS with endpoints that we make
//	external.go   a network of the engine that exists already
//	plugins.go    CNI plugins
//
// A new mode is a new file of that form and one line in the table modes, which both Plan and New read. Nothing else dispatches on Mode. Where the
// engine does not connect the pods, the mode implements Attachments too and returns newAttacher from Attacher. What it needs beyond that (netlink,
// records on disk) is a package below that does not import this one, as iptables and endpoints are.
//
// Packages below: iptables (packet filter rules of Linux), endpoints (pods' endpoints on overlays of Windows). Packages above: hostnet (system calls,
// implements Host and Windows), doctor (finds faults).
package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network/iptables"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Mode says who makes the pod network and the way to other nodes.
type Mode string

const (
	HostGateway Mode = "host-gateway" // the network is made here, routes to other nodes by the proxy
	Upstream    Mode = "upstream"     // the network is made here, a router knows the pod CIDRs
	Overlay     Mode = "overlay"      // the network and a VXLAN device are made here, the entries of other nodes by the proxy
	External    Mode = "external"     // an engine network that exists is used; nothing is made
	CNI         Mode = "cni"          // CNI plugins make the network of each pod
)

// Config is what the administrator chose.
type Config struct {
	Mode     Mode
	Platform pod.Platform
	// External is the engine network of mode External (CONTAINER_NETWORK).
	External string
	// ConfDir is where mode CNI finds the network's configuration.
	ConfDir string
	// NodeIPs are this node's addresses, primary first. Tunnels begin at the first address of their family.
	NodeIPs []netip.Addr
	// Name is the engine network that is made; "": winkube.
	Name string
	// Windows is the kind of network on Windows; "": l2bridge, before Server 2019 transparent.
	Windows WindowsNetwork
	// Adapter is the Windows network adapter that the network takes; "": the one with the node's address.
	Adapter string
	// Services are the ranges of Services' addresses. Pods of an l2bridge network reach them through their host.
	Services []netip.Prefix
	// NonMasquerade are the ranges to which pods' traffic keeps the pod's address, first of all the cluster's pod range. Empty: the
	// private range (RFC 1918, RFC 6598, RFC 4193) that holds this node's pod CIDR, or that pod CIDR alone.
	NonMasquerade []netip.Prefix
}

// Facts are what Plan must know about this node.
type Facts struct {
	PodCIDRs      []string // spec.podCIDRs of the Node, at most one per family
	EngineVersion string   // 20.10.24; "" counts as an old engine
	MTU           int      // of the interface with the node's address, in bytes; 0: not known, counts as 1500
	Adapter       string   // that interface's name; "": not known
}

// Condition is what the Node object says about the network.
type Condition struct {
	Ready           bool
	Reason, Message string
}

// Gateway is an address that the host itself must have on an interface.
type Gateway struct {
	Interface string // its name: vEthernet (HNSTransparent)
	Address   netip.Prefix
}

// State is everything that this host should have for its pods. The zero State is nothing.
type State struct {
	Join     string             // engine network for pods; "" while there is none
	Network  *pod.EngineNetwork // to be made; nil: none
	Rules    []iptables.Rules   // IPv4 first
	Gateways []Gateway
	Devices  []vxlan.Device // ends of tunnels, IPv4 first
	Bridge   *hns.Bridge    // the network in HNS below the engine's, to be made first; nil: the engine makes it
	Overlay  *hns.Overlay   // the network in HNS on which we make the pods' endpoints; nil: none
	Forward  []netip.Addr   // forwarding is switched on where the host has these addresses
	Ready    Condition
}

const (
	defaultName = "winkube"
	bridgeName  = "winkube0"
	// LabelPods marks the engine network that we may replace when no container uses it.
	LabelPods = "io.winkube.network"
)

// Join prints ranges for people: 10.0.0.0/8, fc00::/7.
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

// String prints the State for people (`kubelet network plan`).
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
	for _, r := range s.Rules {
		fmt.Fprintf(&b, "forward: from and to %s\n", r.PodCIDR)
		if len(r.NonMasquerade) > 0 {
			fmt.Fprintf(&b, "masquerade: from %s except to %s\n", r.PodCIDR, Join(r.NonMasquerade))
		}
	}
	s.printWindows(&b)
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
