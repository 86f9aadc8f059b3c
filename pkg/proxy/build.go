package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

// Labels of Services and EndpointSlices that a service proxy must ignore (KEP-2447, KEP-4162).
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = v1.IsHeadlessService
)

// DefaultAffinity is the default of spec.sessionAffinityConfig.clientIP.timeoutSeconds.
const DefaultAffinity = 10800 * time.Second

// Problem is a part of an object that is omitted from the Table, with the reason. The rest of the object is served.
type Problem struct {
	Service ServiceName
	Field   string // path from the object's kind: "Service spec.externalIPs[0]", "EndpointSlice web-x7k2p ports[1]"
	Message string // what is wrong and what would be right
	Reason  Reason
}

// Reason is the kind of a Problem, and the reason of its Event.
type Reason string

const (
	Invalid   Reason = "InvalidService"  // the object is malformed
	Refused   Reason = "AddressRefused"  // another holder has the front
	Elsewhere Reason = "ServedElsewhere" // another node serves it; not a mistake, so no Event
)

func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Service, p.Field, p.Message) }

// Build computes the Table: every Route that node should serve for services with the endpoints in list, each front for
// one Service. It is pure, and the order of its arguments does not matter. It omits what is malformed or belongs to
// another holder; BuildWithProblems names it.
func Build(services []*v1.Service, list []*discovery.EndpointSlice, node NodeInfo, holders Holders) *Table {
	table, _ := BuildWithProblems(services, list, node, holders)
	return table
}

// BuildWithProblems is Build that also returns what was omitted, sorted.
func BuildWithProblems(services []*v1.Service, list []*discovery.EndpointSlice, node NodeInfo, holders Holders) (*Table, []Problem) {
	t := NewTracker(node, holders)
	t.arbiter.fixLate(holders.Late)
	for _, service := range services {
		t.SetService(service)
	}
	for _, slice := range list {
		t.SetSlice(slice)
	}
	t.Update()
	return t.Table(), t.AllProblems()
}

func sortProblems(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(compareService(a.Service, b.Service), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
}

// built is one Service's part of the Table.
type built struct {
	routes   []Route // sorted
	claims   []claim // claims to the routes' fronts, in the same order, then those of the health check
	health   *HealthCheck
	problems []Problem
}

// offer is a Route with the claim to its front.
type offer struct {
	Route
	claim
}

// service is a Service while it is built.
type service struct {
	*v1.Service
	name      ServiceName
	endpoints endpointSet
	node      NodeInfo
	offers    []offer
	out       built
}

func (s *service) problem(field, format string, args ...any) {
	s.out.problems = append(s.out.problems, Problem{s.name, field, fmt.Sprintf(format, args...), Invalid})
}

// skipped reports whether a service proxy must ignore the Service: it belongs to another proxy, is headless, or is only
// a DNS name.
func skipped(s *v1.Service) bool {
	if _, other := s.Labels[labelProxyName]; other {
		return true
	}
	return s.Spec.Type == v1.ServiceTypeExternalName || s.Spec.ClusterIP == v1.ClusterIPNone || s.Spec.ClusterIP == ""
}

// buildService is Build for one Service; list holds its own slices, in any order.
func buildService(object *v1.Service, list []*discovery.EndpointSlice, node NodeInfo) built {
	if skipped(object) {
		return built{}
	}
	s := &service{Service: object, name: ServiceName{Namespace: object.Namespace, Name: object.Name}, node: node}
	s.endpoints = s.mergeSlices(list)
	clusterIPs := s.clusterIPs()
	s.offers = make([]offer, 0, len(clusterIPs)*len(s.Spec.Ports))
	seen := map[portKey]bool{}
	for i, port := range s.Spec.Ports {
		field := position{list: "spec.ports", at: i}
		if !s.validPort(field, &port) {
			continue
		}
		name, number, nodePort := portKey{name: port.Name}, portKey{"port", port.Protocol, port.Port}, portKey{"node port", port.Protocol, port.NodePort}
		if seen[number] || seen[name] {
			s.problem(field.String(), "port %q %s/%d repeats an earlier one: names and ports of a Service must differ", port.Name, port.Protocol, port.Port)
			continue
		}
		if port.NodePort != 0 && seen[nodePort] {
			s.problem(field.String()+".nodePort", "%d is the node port of an earlier %s port", port.NodePort, port.Protocol)
			port.NodePort = 0
		}
		seen[number], seen[name], seen[nodePort] = true, true, true
		for _, clusterIP := range clusterIPs {
			s.buildPort(port, int32(i), clusterIP)
		}
	}
	s.mergeFronts()
	s.out.routes, s.out.claims = make([]Route, len(s.offers)), make([]claim, len(s.offers))
	for i := range s.offers {
		s.out.routes[i], s.out.claims[i] = s.offers[i].Route, s.offers[i].claim
	}
	s.buildHealth()
	sortProblems(s.out.problems)
	s.out.problems = slices.Compact(s.out.problems) // otherwise one per port and family
	return s.out
}

// portKey must differ between the ports of a Service: the name, the port and the node port.
type portKey struct {
	name     string // with a protocol: which kind of number
	protocol v1.Protocol
	number   int32
}

// position is an element of a list in a Service or one of its slices. It is formatted only for a problem.
type position struct {
	slice string // "": in the Service
	list  string
	at    int
	rest  string
}

func (p position) String() string {
	if p.slice != "" {
		return fmt.Sprintf("EndpointSlice %s %s[%d]%s", p.slice, p.list, p.at, p.rest)
	}
	return fmt.Sprintf("Service %s[%d]%s", p.list, p.at, p.rest)
}

// validPort checks a port and sets the default protocol.
func (s *service) validPort(field position, port *v1.ServicePort) bool {
	if port.Protocol == "" {
		port.Protocol = v1.ProtocolTCP
	}
	switch {
	case port.Protocol != v1.ProtocolTCP && port.Protocol != v1.ProtocolUDP && port.Protocol != v1.ProtocolSCTP:
		s.problem(field.String()+".protocol", "%q must be TCP, UDP or SCTP", port.Protocol)
	case port.Port < 1 || port.Port > 65535:
		s.problem(field.String()+".port", "%d must be from 1 to 65535", port.Port)
	case port.NodePort < 0 || port.NodePort > 65535:
		s.problem(field.String()+".nodePort", "%d must be from 1 to 65535", port.NodePort)
	default:
		return true
	}
	return false
}

// address is a Service's address with its index in the field's list.
type address struct {
	netip.Addr
	index int32
}

// clusterIPs returns the Service's valid cluster IPs of families that this node serves, at most one per family.
func (s *service) clusterIPs() []address {
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP}
	}
	var out []address
	for i, text := range list {
		addr, ok := s.parseAddr(position{list: "spec.clusterIPs", at: i}, text)
		if !ok || !s.node.serves(addr) {
			continue
		}
		if slices.ContainsFunc(out, func(a address) bool { return a.Is4() == addr.Is4() }) {
			s.problem(fmt.Sprintf("Service spec.clusterIPs[%d]", i), "%s is the second of its family: one each of IPv4 and IPv6 is allowed", text)
			continue
		}
		out = append(out, address{addr, int32(i)})
	}
	return out
}

func (n NodeInfo) serves(addr netip.Addr) bool {
	return n.IPv4 == n.IPv6 || addr.Is4() == n.IPv4
}

// parseAddr parses a unicast address. It accepts leading zeros, which old API servers allowed.
func (s *service) parseAddr(field position, text string) (netip.Addr, bool) {
	addr, ok := parseIP(text)
	if !ok || addr.IsUnspecified() || addr.IsMulticast() || addr == broadcast {
		s.problem(field.String(), "%q must be the IP address of one host", text)
		return netip.Addr{}, false
	}
	return addr, true
}

// broadcast is the address of all hosts on the link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func parseIP(text string) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// external parses an external address of the family. It refuses loopback addresses, which would hide this host's own
// services, and link-local ones, which would hide those of its cloud provider.
func (s *service) external(field position, text string, family netip.Addr) (netip.Addr, bool) {
	addr, ok := s.parseAddr(field, text)
	if ok && addr.IsLoopback() {
		s.problem(field.String(), "%s is a loopback address: each host has its own", text)
		return addr, false
	}
	if ok && addr.IsLinkLocalUnicast() {
		s.problem(field.String(), "%s is a link-local address: want one that other networks can reach", text)
		return addr, false
	}
	return addr, ok && addr.Is4() == family.Is4()
}

// buildPort adds the Routes of one port in the family of clusterIP.
func (s *service) buildPort(port v1.ServicePort, index int32, clusterIP address) {
	name := ServicePortName{s.name, port.Name}
	all := s.endpoints[endpointKey{port.Name, port.Protocol, clusterIP.Is4()}]
	add := func(kind Kind, addr netip.Addr, number, index int32, local bool) *Route {
		backends, elsewhere := choose(all, local, s.node)
		front := netip.AddrPortFrom(addr, uint16(number))
		s.offers = append(s.offers, offer{Route{Service: name, Kind: kind, Protocol: port.Protocol, Affinity: s.affinity(), Front: front, Backends: backends,
			Drop: elsewhere, KeepClient: local && kind != ClusterIP}, claim{front: keyOf(port.Protocol, front), index: index, rank: rankOf(kind)}})
		route := &s.offers[len(s.offers)-1].Route
		if route.KeepClient {
			if near, _ := choose(all, false, s.node); !slices.Equal(near, backends) {
				route.Near = near
			}
		}
		return route
	}
	internal := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal
	externally := s.externalLocal()
	add(ClusterIP, clusterIP.Addr, port.Port, clusterIP.index, internal)
	for i, text := range s.Spec.ExternalIPs {
		if addr, ok := s.external(position{list: "spec.externalIPs", at: i}, text, clusterIP.Addr); ok {
			add(ExternalIP, addr, port.Port, int32(i), externally)
		}
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer {
		for i, ingress := range s.Status.LoadBalancer.Ingress {
			if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != v1.LoadBalancerIPModeVIP {
				continue // clients use its name, or a proxy that sends to node ports
			}
			if addr, ok := s.external(position{list: "status.loadBalancer.ingress", at: i, rest: ".ip"}, ingress.IP, clusterIP.Addr); ok {
				add(LoadBalancer, addr, port.Port, int32(i), externally).Sources = s.sources(clusterIP.Addr)
			}
		}
	}
	if port.NodePort != 0 && (s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer) {
		unspecified := netip.IPv6Unspecified()
		if clusterIP.Is4() {
			unspecified = netip.IPv4Unspecified()
		}
		add(NodePort, unspecified, port.NodePort, index, externally)
	}
}

// mergeFronts keeps one offer per front, sorted as the Table is: an address may be listed twice, or both as an external
// IP and as a load balancer's. The cluster IP comes first, because it has the Service's own policy; then the load
// balancer's Route, which has the allowed sources.
func (s *service) mergeFronts() {
	if len(s.offers) > 1 {
		slices.SortStableFunc(s.offers, func(a, b offer) int { return cmp.Or(a.front.compare(b.front), cmp.Compare(a.rank, b.rank)) })
		s.offers = slices.CompactFunc(s.offers, func(a, b offer) bool { return a.front == b.front })
	}
	slices.SortStableFunc(s.offers, func(a, b offer) int { return compareRoute(a.Route, b.Route) })
}

// externalLocal reports whether traffic from outside the cluster may only go to endpoints on this node.
func (s *service) externalLocal() bool {
	open := s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0
	return open && s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

func (s *service) affinity() time.Duration {
	if s.Spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
		return time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	}
	return DefaultAffinity
}

// sources returns the ranges of the family in spec.loadBalancerSourceRanges. As upstream, no range of the family, or
// the range of all addresses, admits every client. If all ranges are malformed, no client is allowed.
func (s *service) sources(family netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	valid := len(s.Spec.LoadBalancerSourceRanges) == 0
	for i, text := range s.Spec.LoadBalancerSourceRanges {
		_, ipnet, err := netutils.ParseCIDRSloppy(strings.TrimSpace(text))
		if err != nil {
			s.problem(fmt.Sprintf("Service spec.loadBalancerSourceRanges[%d]", i), "%q must be a range such as 10.0.0.0/8", text)
			continue
		}
		valid = true
		addr, _ := netip.AddrFromSlice(ipnet.IP)
		bits, _ := ipnet.Mask.Size()
		if addr = addr.Unmap(); addr.Is4() != family.Is4() {
			continue
		}
		if bits == 0 {
			return nil
		}
		out = append(out, netip.PrefixFrom(addr, bits))
	}
	if !valid {
		none := netip.IPv6Unspecified()
		if family.Is4() {
			none = netip.IPv4Unspecified()
		}
		return []netip.Prefix{netip.PrefixFrom(none, none.BitLen())}
	}
	slices.SortFunc(out, comparePrefix)
	return slices.Compact(out)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// buildHealth adds the health check node port, after all routes. Its count is the number of ready endpoints on this node, whatever their
// port. An endpoint with two families counts once: the family with more endpoints decides.
func (s *service) buildHealth() {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || !s.externalLocal() {
		return
	}
	port := s.Spec.HealthCheckNodePort
	if port < 1 || port > 65535 {
		s.problem("Service spec.healthCheckNodePort", "%d must be from 1 to 65535 with externalTrafficPolicy Local", port)
		return
	}
	var claims [2]claim
	for i, all := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		claims[i] = claim{front: keyOf(v1.ProtocolTCP, netip.AddrPortFrom(all, uint16(port))), index: healthCheck, rank: rankOf(NodePort)}
		if slices.ContainsFunc(s.out.claims, func(c claim) bool { return c.front == claims[i].front }) {
			s.problem("Service spec.healthCheckNodePort", "%d is a node port of the same Service: want another port", port)
			return
		}
	}
	s.out.claims = append(s.out.claims, claims[:]...)
	local := map[bool]map[netip.Addr]bool{true: {}, false: {}}
	for key, endpoints := range s.endpoints {
		for _, e := range endpoints {
			if e.ready && e.local {
				local[key.ipv4][e.addr.Addr()] = true
			}
		}
	}
	s.out.health = &HealthCheck{Service: s.name, Port: uint16(port), LocalEndpoints: max(len(local[true]), len(local[false]))}
}
