package relay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// Front is one port of an address.
type Front struct {
	Protocol v1.Protocol
	Addr     netip.AddrPort
}

// String is the front as an element of sets of nftables: 203.0.113.9 . tcp . 80.
func (f Front) String() string {
	return fmt.Sprintf("%s . %s . %d", f.Addr.Addr(), strings.ToLower(string(f.Protocol)), f.Addr.Port())
}

func compareFront(a, b Front) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol))
}

// portHolder is the ability of Addresses to take single ports of addresses, the rest of which stays where it is. Sockets at such a port must not mind
// that their address is no address of this host.
type portHolder interface {
	// HoldPorts names the fronts, sorted, whose ports the next Set takes beside the addresses that it is given.
	HoldPorts(fronts []Front)
	// HoldsPorts says whether it can for addresses like this one: otherwise Set holds such an address as a whole.
	HoldsPorts(addr netip.Addr) bool
}

// single says whether a front takes its port alone: its address is neither the host's nor that of a Service.
func (r *Relay) single(key frontKey) bool {
	h, ok := r.cfg.Addresses.(portHolder)
	if !ok || key.protocol != v1.ProtocolTCP && key.protocol != v1.ProtocolUDP {
		return false
	}
	route := r.wanted[key]
	addr := key.addr.Addr()
	return route != nil && (route.Kind == proxy.ExternalIP || route.Kind == proxy.LoadBalancer) && !r.whole[addr] && !slices.Contains(r.host, addr) && h.HoldsPorts(addr)
}

// shifted says whether one of these fronts begins or ends to take its port alone.
func (r *Relay) shifted(dirty map[frontKey]struct{}) bool {
	for key := range dirty {
		if _, held := r.held[key]; held != r.single(key) {
			return true
		}
	}
	return false
}

// holdPorts names the ports to take and returns the addresses to hold as a whole, sorted. Both are of fronts that are served.
func (r *Relay) holdPorts() (addrs []netip.Addr) {
	r.whole, r.held = map[netip.Addr]bool{}, map[frontKey]struct{}{}
	for key, route := range r.wanted {
		if route.Kind == proxy.ClusterIP {
			r.whole[key.addr.Addr()] = true
		}
	}
	var fronts []Front
	for key := range r.wanted {
		addr := key.addr.Addr()
		switch {
		case addr.IsUnspecified() || addr.IsLoopback() || slices.Contains(r.host, addr):
		case r.single(key):
			r.held[key] = struct{}{}
			fronts = append(fronts, Front{key.protocol, key.addr})
		default:
			addrs = append(addrs, addr)
		}
	}
	if h, ok := r.cfg.Addresses.(portHolder); ok {
		slices.SortFunc(fronts, compareFront)
		h.HoldPorts(fronts)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
