package hnslb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// front is what tells load balancers apart: HNS has one for each.
type front struct {
	vip      netip.Addr // the zero Addr: node port
	ipv6     bool
	protocol uint32
	port     uint16
}

func frontOf(lb *hns.LoadBalancer) front { return front{lb.VIP, lb.IPv6, lb.Protocol, lb.ExternalPort} }

// wish is a load balancer that should be, its endpoints by address.
type wish struct {
	route   proxy.Route
	lb      hns.LoadBalancer // without endpoints
	targets []proxy.Endpoint
}

var protocols = map[v1.Protocol]uint32{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17, v1.ProtocolSCTP: 132}

// Serves says whether a load balancer can do what a Route says. One cannot refuse, be limited to source ranges, or lead to several ports.
func Serves(r *proxy.Route) bool {
	targets := r.Targets()
	return len(targets) > 0 && len(r.Sources) == 0 && protocols[r.Protocol] != 0 &&
		!slices.ContainsFunc(targets, func(e proxy.Endpoint) bool { return e.Addr.Port() != targets[0].Addr.Port() })
}

// wishes is what HNS should have for some Routes. Those that it cannot serve, or only in part, are errors.
func (s *segment) wishes(routes []proxy.Route) (out []*wish, errs []error) {
	for _, r := range routes {
		targets := r.Targets()
		if len(targets) == 0 {
			continue // nothing listens there: HNS cannot refuse
		}
		if len(r.Sources) > 0 {
			errs = append(errs, &proxy.RouteError{Route: r, Err: errors.New("HNS load balancers cannot be limited to source ranges")})
			continue
		}
		port := commonPort(targets)
		same := slices.DeleteFunc(slices.Clone(targets), func(e proxy.Endpoint) bool { return e.Addr.Port() != port })
		if len(same) < len(targets) {
			errs = append(errs, &proxy.RouteError{Route: r,
				Err: fmt.Errorf("an HNS load balancer has one target port: only endpoints with port %d are used", port)})
		}
		out = append(out, &wish{route: r, lb: s.balancer(&r, same), targets: same})
	}
	return out, errs
}

// balancer has the flags that upstream's winkernel proxy gives: direct server return for cluster IPs where it is switched on, and for other
// kinds when all endpoints are on this node.
func (s *segment) balancer(r *proxy.Route, targets []proxy.Endpoint) hns.LoadBalancer {
	lb := hns.LoadBalancer{VIP: r.Front.Addr(), IPv6: r.Front.Addr().Is6(), Protocol: protocols[r.Protocol], ExternalPort: r.Front.Port(),
		InternalPort: targets[0].Addr.Port(), ClientAffinity: r.Affinity > 0, ExternalIP: r.Kind != proxy.ClusterIP, DSR: s.dsr}
	if r.Kind != proxy.ClusterIP {
		lb.DSR = !slices.ContainsFunc(targets, func(e proxy.Endpoint) bool { return !e.Local })
	}
	if r.Kind == proxy.NodePort {
		lb.VIP, lb.LocalRouted = netip.Addr{}, true
	}
	if s.Overlay {
		lb.SourceVIP = s.asksFrom(targets)
	}
	return lb
}

// asksFrom is the address from which a load balancer of an overlay asks: the node's own where an endpoint is outside of the overlay, which has no way
// back to the other (kubernetes/kubernetes#79359: the API server's own Service, whose endpoints are nodes).
func (s *segment) asksFrom(targets []proxy.Endpoint) netip.Addr {
	for _, target := range targets {
		inside := target.Local || slices.ContainsFunc(s.Remote, func(other hns.RemoteSubnet) bool { return other.Prefix.Contains(target.Addr.Addr()) })
		if !inside {
			return s.nodeAddr
		}
	}
	return s.sourceVIP
}

// commonPort is the port that most endpoints have; of several the lowest.
func commonPort(targets []proxy.Endpoint) uint16 {
	count := map[uint16]int{}
	best := targets[0].Addr.Port()
	for _, e := range targets {
		p := e.Addr.Port()
		count[p]++
		if count[p] > count[best] || count[p] == count[best] && p < best {
			best = p
		}
	}
	return best
}

// remoteMAC is the hardware address of a remote endpoint: never on a wire, but different for each, as upstream makes it up. It is also the
// mark by which the next run knows our endpoints.
func remoteMAC(addr netip.Addr) string {
	b := addr.AsSlice()
	b = b[len(b)-4:]
	if addr.Is6() {
		slices.Reverse(b)
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// endpointsFor lists the endpoints that a wish needs and that are ours to make.
func (s *segment) endpointsFor(w *wish) (out []hns.Endpoint) {
	for _, target := range w.targets {
		addr := target.Addr.Addr()
		if target.Local {
			continue // the network's maker made it
		}
		e := hns.Endpoint{Addrs: []netip.Addr{addr}, MAC: remoteMAC(addr), Remote: true}
		if s.Overlay {
			e.Provider = s.provider(addr)
		}
		out = append(out, e)
	}
	if !s.Overlay {
		return out
	}
	if w.route.Kind == proxy.ClusterIP {
		out = append(out, hns.Endpoint{Addrs: []netip.Addr{w.lb.VIP}, MAC: s.nodeMAC, Remote: true, Provider: s.nodeAddr})
	}
	return append(out, hns.Endpoint{Addrs: []netip.Addr{s.sourceVIP}, MAC: s.nodeMAC})
}

// provider is the host that has an address of an overlay; this one for those outside of all remote subnets.
func (s *segment) provider(addr netip.Addr) netip.Addr {
	for _, other := range s.Remote {
		if other.Prefix.Contains(addr) || other.Provider == addr {
			return other.Provider
		}
	}
	return s.nodeAddr
}

// ours says whether an endpoint is one that endpointsFor lists: ours to remove.
func (s *segment) ours(e *hns.Endpoint) bool {
	if len(e.Addrs) != 1 {
		return false
	}
	if !e.Remote {
		return e.Addrs[0] == s.sourceVIP && sameMAC(e.MAC, s.nodeMAC)
	}
	return sameMAC(e.MAC, remoteMAC(e.Addrs[0])) || s.nodeMAC != "" && sameMAC(e.MAC, s.nodeMAC)
}

// elsewhere says whether an endpoint of ours leads to another host than it should.
func (s *segment) elsewhere(have, want *hns.Endpoint) bool {
	return have.Remote && want.Provider.IsValid() && have.Provider.IsValid() && have.Provider != want.Provider && s.ours(have)
}

// sameMAC compares hardware addresses in either notation: HNS may answer with dashes to what was given with colons.
func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// equal says whether two load balancers do the same.
func equal(a, b *hns.LoadBalancer) bool {
	return frontOf(a) == frontOf(b) && a.InternalPort == b.InternalPort && a.SourceVIP == b.SourceVIP && a.DSR == b.DSR && a.ExternalIP == b.ExternalIP &&
		a.LocalRouted == b.LocalRouted && a.ClientAffinity == b.ClientAffinity && slices.Equal(a.Endpoints, b.Endpoints)
}
