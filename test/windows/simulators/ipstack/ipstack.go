// Package ipstack models the IP stack of a Windows host on top of the simulators' state: whether a packet arrives, who receives it, and whether the
// answer returns.
//
//	hns.Snapshot, iphelper.Snapshot, netsh rules, Fronts --Of--> Host --Ask(Question)--> Answer with its hops --> Table
//
// It moves no packets. Each rule cites its source. Where no source exists, the answer is Unknown, never Yes.
package ipstack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/iphelper"
	"github.com/winkube/winkube/test/windows/simulators/netsh"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// Verdict says whether the client gets its answer from the intended server.
type Verdict string

// The verdicts.
const (
	Yes     Verdict = "yes"
	No      Verdict = "no"
	Unknown Verdict = "unknown" // no source answers it
)

// Place is where a client runs.
type Place int

// The places.
const (
	Pod     Place = iota // a pod on this node
	Self                 // a program on this node
	Other                // a program or pod on another node
	Outside              // a client without a route to pods
)

var placeNames = []string{"pod", "host", "other node", "outside"}

// String returns the place's name.
func (p Place) String() string { return placeNames[p] }

// Front is an address and a port where a Service should answer, and its endpoints.
type Front struct {
	Name    string
	Addr    netip.AddrPort // unspecified for a node port
	UDP     bool
	Outer   bool // an external or load balancer address
	Targets []netip.AddrPort
}

// Listener is a socket of the host.
type Listener struct {
	Addr    netip.AddrPort // unspecified means all addresses of the host
	UDP     bool
	Owner   string           // the program or service
	Targets []netip.AddrPort // where it relays to
	Admits  bool             // Windows has a built-in firewall rule for it
}

// Wildcards returns the sockets that Windows Server has on all addresses: RPC, SMB, and http.sys for WinRM (Microsoft, "Service overview and
// network port requirements for Windows"). http.sys listens on all addresses unless its listen list names some ("IP Listen List"). Remote Desktop
// is off by default, but included because many hosts use it.
func Wildcards() (out []Listener) {
	for _, one := range []struct {
		port  uint16
		owner string
	}{{135, "RpcEptMapper"}, {445, "SMB"}, {3389, "TermService"}, {5985, "http.sys"}} {
		out = append(out, Listener{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), one.port), Owner: one.owner, Admits: true})
	}
	return out
}

// Surroundings describe what the simulators do not know about the host.
type Surroundings struct {
	Build   int
	Node    netip.Addr // the host's own address
	Adapter string     // the adapter with that address
	Gateway netip.Addr // the host's default gateway, behind that adapter
	API     netip.AddrPort
	Peer    netip.Addr // another node
	Remote  netip.Addr // a pod on that node
	Pod     netip.Addr // the pod that sends; invalid means HNS's first
	Fronts  []Front
	Cluster []netip.Prefix // ranges of pods and Services: nothing outside has such an address
	// SharedPorts says that the relay sets SO_REUSE_UNICASTPORT.
	SharedPorts bool
	// Relay is the program that listens on the fronts that neither HNS nor a port proxy rule serves; empty means none.
	Relay string
}

// Host is a snapshot of a host's IP stack.
type Host struct {
	Surroundings
	hns        hns.Snapshot
	interfaces []iphelper.Interface
	routes     []iphelper.Route
	listeners  []Listener
	firewall   []netsh.FirewallRule
	reserving  int // load balancers that reserve a block of 64 dynamic ports
	dynamic    int // TCP ports left for connections
}

// Of returns the IP stack of a simulated host.
func Of(w *sim.World, s Surroundings) *Host {
	h := &Host{Surroundings: s, hns: w.HNS.Snapshot(), firewall: w.Netsh.FirewallRules(), reserving: w.HNS.Reserving(), listeners: Wildcards()}
	h.interfaces, h.routes = w.IPHelper.Snapshot()
	first, count, excluded := w.Netsh.Ports()
	h.dynamic = count
	for _, r := range excluded {
		h.dynamic -= max(min(r[1]+1, first+count)-max(r[0], first), 0)
	}
	h.addUplink()
	for _, r := range w.Netsh.Rules() {
		h.addRule(r)
	}
	for _, f := range s.Fronts {
		if h.Relay == "" || h.balancer(f.Addr, f.UDP) != nil || !f.UDP && h.listener(f.Addr, false) != nil && h.listener(f.Addr, false).Owner == portProxy {
			continue
		}
		h.listeners = append(h.listeners, Listener{Addr: f.Addr, UDP: f.UDP, Owner: h.Relay, Targets: f.Targets})
	}
	return h
}

// addUplink adds what the simulators leave to Linux: the adapter with the node's address, and its default route.
func (h *Host) addUplink() {
	at := slices.IndexFunc(h.interfaces, func(i iphelper.Interface) bool { return i.Name == h.Adapter })
	if at < 0 {
		h.interfaces = append(h.interfaces, iphelper.Interface{Name: h.Adapter, Skipped: map[netip.Addr]bool{}, V4: iphelper.Settings{Metric: 25}})
		at = len(h.interfaces) - 1
	}
	if i := &h.interfaces[at]; !slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == h.Node }) {
		i.Addresses = append(i.Addresses, netip.PrefixFrom(h.Node, 24))
	}
	// A static default gateway has metric 256 (netsh "add address", gwmetric), one from DHCP 0. The worse one is
	// assumed.
	h.routes = append(h.routes, iphelper.Route{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Via: h.Gateway, Interface: h.Adapter, Metric: 256})
}

// portProxy is the service that listens for port proxy rules (Microsoft, "Netsh interface portproxy").
const portProxy = "iphlpsvc"

// addRule adds the socket of a port proxy rule. IP Helper can listen only on an address that the host has.
func (h *Host) addRule(r netsh.Rule) {
	listen := r.ListenAddress
	if listen == "*" {
		listen = "0.0.0.0"
	}
	from, err := netip.ParseAddrPort(join(listen, r.ListenPort))
	to, err2 := netip.ParseAddrPort(join(r.ConnectAddress, r.ConnectPort))
	if err != nil || err2 != nil || !from.Addr().IsUnspecified() && h.holder(from.Addr()) == nil {
		return
	}
	h.listeners = append(h.listeners, Listener{Addr: from, Owner: portProxy, Targets: []netip.AddrPort{to}})
}

func join(addr, port string) string {
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	return addr + ":" + port
}

// holder returns the interface that has an address.
func (h *Host) holder(addr netip.Addr) *iphelper.Interface {
	for i := range h.interfaces {
		if slices.ContainsFunc(h.interfaces[i].Addresses, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return &h.interfaces[i]
		}
	}
	return nil
}

// listener returns the socket that receives packets for an address of the host: one on that address, otherwise one on all addresses (Microsoft,
// "Using SO_REUSEADDR and SO_EXCLUSIVEADDRUSE").
func (h *Host) listener(to netip.AddrPort, udp bool) *Listener {
	var wild *Listener
	for i := range h.listeners {
		l := &h.listeners[i]
		if l.UDP != udp || l.Addr.Port() != to.Port() {
			continue
		}
		if l.Addr.Addr() == to.Addr() {
			return l
		}
		if l.Addr.Addr().IsUnspecified() && l.Addr.Addr().Is4() == to.Addr().Is4() && wild == nil {
			wild = l
		}
	}
	return wild
}

// settings returns an interface's settings for the family of an address.
func settings(i *iphelper.Interface, addr netip.Addr) iphelper.Settings {
	if addr.Is6() {
		return i.V6
	}
	return i.V4
}

// way is a route that matches a destination.
type way struct {
	route iphelper.Route
	cost  uint32
}

// lookup finds the best route to an address: the longest prefix, then the lowest sum of the route's and its interface's metrics (Microsoft,
// MIB_IPFORWARD_ROW2 and "An explanation of the Automatic Metric feature"). A non-nil only restricts it to that interface's routes. tie reports
// that another route is as good.
func (h *Host) lookup(to netip.Addr, only *iphelper.Interface) (best way, tie, found bool) {
	all := slices.Clone(h.routes)
	for i := range h.interfaces {
		for _, p := range h.interfaces[i].Addresses {
			all = append(all, iphelper.Route{Prefix: p.Masked(), Via: netip.IPv4Unspecified(), Interface: h.interfaces[i].Name, Metric: 256}) // on-link
		}
	}
	for _, r := range all {
		i := h.named(r.Interface)
		if !r.Prefix.Contains(to) || i == nil || only != nil && i.Name != only.Name || r.Prefix.Bits() == 0 && settings(i, to).NoDefaultRoutes {
			continue
		}
		w := way{r, r.Metric + settings(i, to).Metric}
		switch {
		case !found || r.Prefix.Bits() > best.route.Prefix.Bits() || r.Prefix.Bits() == best.route.Prefix.Bits() && w.cost < best.cost:
			best, tie, found = w, false, true
		case r.Prefix.Bits() == best.route.Prefix.Bits() && w.cost == best.cost && r != best.route:
			tie = true
		}
	}
	return best, tie, found
}

func (h *Host) named(name string) *iphelper.Interface {
	for i := range h.interfaces {
		if h.interfaces[i].Name == name {
			return &h.interfaces[i]
		}
	}
	return nil
}

// String returns a route as it appears in a hop.
func (w way) String() string {
	if w.route.Via.IsUnspecified() {
		return fmt.Sprintf("%s on link of %q", w.route.Prefix, w.route.Interface)
	}
	return fmt.Sprintf("%s via %s on %q", w.route.Prefix, w.route.Via, w.route.Interface)
}
