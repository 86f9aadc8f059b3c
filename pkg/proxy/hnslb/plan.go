package hnslb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
)

// front identifies a load balancer: HNS has at most one for each.
type front struct {
	vip      netip.Addr // the zero Addr: node port
	ipv6     bool
	protocol uint32
	port     uint16
}

func frontOf(lb *hns.LoadBalancer) front { return front{lb.VIP, lb.IPv6, lb.Protocol, lb.ExternalPort} }

// wish is a load balancer that should exist, with its endpoints by address.
type wish struct {
	route   proxy.Route
	lb      hns.LoadBalancer // without endpoints
	targets []proxy.Endpoint
}

var protocols = map[v1.Protocol]uint32{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17, v1.ProtocolSCTP: 132}

// server2022 is the first Windows Server whose HNS supports session affinity (12.0) and IPv6 (11.10). Source: hcsshim
// hcnglobals.go (SessionAffinityVersion, IPv6DualStackVersion); 9.3 on Server 2019 (kubernetes/kubernetes#93304).
const server2022 = 20348

// lacks says which feature for a Route this build's HNS lacks, or each build's. No load balancer has a time of affinity
// (hcsshim hcn/hcnloadbalancer.go; kubernetes.io "Networking on Windows": timeoutSeconds is not supported). The default is
// taken as no wish, because the API server fills it in.
func (c *Config) lacks(r *proxy.Route) error {
	const otherwise = "or a network whose pods reach the relay (host-gateway, upstream)"
	switch old := c.old(); {
	case old && r.Affinity > 0:
		return fmt.Errorf("HNS load balancers of Windows build %d have no session affinity; want build %d (Server 2022) or later, "+otherwise, c.Build, server2022)
	case old && r.Front.Addr().Is6():
		return fmt.Errorf("HNS load balancers of Windows build %d have no IPv6; want build %d (Server 2022) or later, "+otherwise, c.Build, server2022)
	case r.Affinity > 0 && r.Affinity != proxy.DefaultAffinity:
		return fmt.Errorf("spec.sessionAffinityConfig.clientIP.timeoutSeconds is %d, but HNS load balancers have no such setting: this front has session affinity without that time; want %d, the default, "+otherwise,
			r.Affinity/time.Second, proxy.DefaultAffinity/time.Second)
	}
	return nil
}

// old reports whether this build's HNS lacks session affinity and IPv6.
func (c *Config) old() bool { return c.Build != 0 && c.Build < server2022 }

// serves reports whether a load balancer can serve a Route. None can refuse traffic, restrict source ranges, or use
// several target ports. None has a time of session affinity, and older ones lack session affinity; on overlays, which have
// no alternative, that is an error of the Route instead.
func (c *Config) serves(r *proxy.Route) bool {
	targets := r.Targets()
	return len(targets) > 0 && len(r.Sources) == 0 && protocols[r.Protocol] != 0 && (c.lacks(r) == nil || c.Overlay) &&
		!slices.ContainsFunc(targets, func(e proxy.Endpoint) bool { return e.Addr.Port() != targets[0].Addr.Port() })
}

// wishes returns what HNS should have for some Routes. Routes that it cannot serve fully are errors.
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
		if c := (&Config{Build: s.build}); c.lacks(&r) != nil {
			errs = append(errs, &proxy.RouteError{Route: r, Err: c.lacks(&r)})
			switch { // on overlays, pods reach Services only through HNS: service without affinity or its time is better than none
			case !s.Overlay, c.old() && r.Front.Addr().Is6():
				continue
			case c.old():
				r.Affinity = 0
			}
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

// balancer sets the flags as upstream's winkernel proxy does: direct server return for cluster IPs if enabled, and for
// other kinds if all endpoints are on this node.
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

// asksFrom returns the source address of an overlay's load balancer: the node's own if an endpoint is outside the
// overlay, from where there is no route back to the other (kubernetes/kubernetes#79359: the API server's own Service,
// whose endpoints are nodes).
func (s *segment) asksFrom(targets []proxy.Endpoint) netip.Addr {
	for _, target := range targets {
		inside := target.Local || slices.ContainsFunc(s.Remote, func(other hns.RemoteSubnet) bool { return other.Prefix.Contains(target.Addr.Addr()) })
		if !inside {
			return s.nodeAddr
		}
	}
	return s.sourceVIP
}

// commonPort returns the most common port of targets; on a tie, the lowest.
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

// remoteMAC returns the hardware address of a remote endpoint. It never appears on a network, but is unique, and has
// upstream's form. The next run recognizes our endpoints by it.
func remoteMAC(addr netip.Addr) string {
	b := addr.AsSlice()
	b = b[len(b)-4:]
	if addr.Is6() {
		slices.Reverse(b)
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// endpointsFor lists the endpoints for a wish that we must create.
func (s *segment) endpointsFor(w *wish) (out []hns.Endpoint) {
	for _, target := range w.targets {
		addr := target.Addr.Addr()
		if target.Local {
			continue // the creator of the network created it
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

// provider returns the host of an overlay's address; this host for addresses outside all remote subnets.
func (s *segment) provider(addr netip.Addr) netip.Addr {
	for _, other := range s.Remote {
		if other.Prefix.Contains(addr) || other.Provider == addr {
			return other.Provider
		}
	}
	return s.nodeAddr
}

// ours reports whether an endpoint has the form of endpointsFor, so that we may remove it.
func (s *segment) ours(e *hns.Endpoint) bool {
	if len(e.Addrs) != 1 {
		return false
	}
	if !e.Remote {
		return e.Addrs[0] == s.sourceVIP && sameMAC(e.MAC, s.nodeMAC)
	}
	return sameMAC(e.MAC, remoteMAC(e.Addrs[0])) || s.nodeMAC != "" && sameMAC(e.MAC, s.nodeMAC)
}

// elsewhere reports whether one of our endpoints leads to the wrong host.
func (s *segment) elsewhere(have, want *hns.Endpoint) bool {
	return have.Remote && want.Provider.IsValid() && have.Provider.IsValid() && have.Provider != want.Provider && s.ours(have)
}

// sameMAC compares hardware addresses in either notation: HNS may return dashes for colons.
func sameMAC(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, ":", "-"), strings.ReplaceAll(b, ":", "-"))
}

// equal reports whether two load balancers have the same fields.
func equal(a, b *hns.LoadBalancer) bool {
	return alike(a, b) && a.SourceVIP == b.SourceVIP && a.DSR == b.DSR && a.ExternalIP == b.ExternalIP && a.LocalRouted == b.LocalRouted && a.ClientAffinity == b.ClientAffinity
}

// alike reports whether two load balancers have the same front, target port and endpoints, whatever their flags.
func alike(a, b *hns.LoadBalancer) bool {
	return frontOf(a) == frontOf(b) && a.InternalPort == b.InternalPort && slices.Equal(a.Endpoints, b.Endpoints)
}

// serves reports whether the load balancer in HNS' list is as wanted. The flag for external addresses (16) is in no
// schema that Microsoft documents, though upstream's winkernel proxy always sets it; an HNS that does not return it may
// still obey it.
func serves(have, want *hns.LoadBalancer) bool {
	asked := *want
	asked.ExternalIP = asked.ExternalIP && have.ExternalIP
	return equal(have, &asked)
}
