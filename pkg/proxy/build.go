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

// Labels with which a Service or EndpointSlice tells a service proxy to leave it alone (KEP-2447, KEP-4162).
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = v1.IsHeadlessService
)

// defaultAffinity is what spec.sessionAffinityConfig.clientIP.timeoutSeconds means when it is not set.
const defaultAffinity = 10800 * time.Second

// Problem is a part of an object that is left out of the Table, and why. The rest of the object is served.
type Problem struct {
	Service ServiceName
	Field   string // where, from the object's kind on: "Service spec.externalIPs[0]", "EndpointSlice web-x7k2p ports[1]"
	Message string // what is wrong and what would be right
}

func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Service, p.Field, p.Message) }

// Build decides the Table: every Route that node should serve for services with the endpoints of the slices in list. It is pure, the order of its
// arguments does not matter, and what is malformed is left out; Tracker.Problems names it.
func Build(services []*v1.Service, list []*discovery.EndpointSlice, node NodeInfo) *Table {
	table, _ := BuildWithProblems(services, list, node)
	return table
}

// BuildWithProblems is Build that also says what was left out, sorted.
func BuildWithProblems(services []*v1.Service, list []*discovery.EndpointSlice, node NodeInfo) (*Table, []Problem) {
	bySlice := map[ServiceName][]*discovery.EndpointSlice{}
	for _, slice := range list {
		if name, ok := sliceService(slice); ok {
			bySlice[name] = append(bySlice[name], slice)
		}
	}
	table := &Table{}
	var problems []Problem
	for _, service := range services {
		name := ServiceName{Namespace: service.Namespace, Name: service.Name}
		one := buildService(service, bySlice[name], node)
		table.Routes = append(table.Routes, one.routes...)
		if one.health != nil {
			table.HealthChecks = append(table.HealthChecks, *one.health)
		}
		problems = append(problems, one.problems...)
	}
	table.sort()
	sortProblems(problems)
	return table, problems
}

func sortProblems(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(compareService(a.Service, b.Service), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
}

// built is what one Service gives to the Table.
type built struct {
	routes   []Route // sorted
	health   *HealthCheck
	problems []Problem
}

// service is a Service being built.
type service struct {
	*v1.Service
	name      ServiceName
	endpoints endpointSet
	node      NodeInfo
	out       built
}

func (s *service) problem(field, format string, args ...any) {
	s.out.problems = append(s.out.problems, Problem{s.name, field, fmt.Sprintf(format, args...)})
}

// skipped says whether the Service is none of a service proxy's business: another proxy's, headless, or only a DNS name.
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
	seen := map[string]bool{}
	for i, port := range s.Spec.Ports {
		field := fmt.Sprintf("Service spec.ports[%d]", i)
		if !s.validPort(field, &port) {
			continue
		}
		key, nodePort := fmt.Sprintf("%s/%d", port.Protocol, port.Port), fmt.Sprintf("node %s/%d", port.Protocol, port.NodePort)
		if seen[key] || seen["name "+port.Name] {
			s.problem(field, "port %q %s repeats an earlier one: names and ports of a Service must differ", port.Name, key)
			continue
		}
		if port.NodePort != 0 && seen[nodePort] {
			s.problem(field+".nodePort", "%d is the node port of an earlier %s port", port.NodePort, port.Protocol)
			port.NodePort = 0
		}
		seen[key], seen["name "+port.Name], seen[nodePort] = true, true, true
		for _, clusterIP := range clusterIPs {
			s.buildPort(port, clusterIP)
		}
	}
	s.buildHealth()
	s.mergeFronts()
	sortRoutes(s.out.routes)
	sortProblems(s.out.problems)
	s.out.problems = slices.Compact(s.out.problems) // one for each port and family otherwise
	return s.out
}

// validPort checks a port and fills in the protocol that an empty one means.
func (s *service) validPort(field string, port *v1.ServicePort) bool {
	if port.Protocol == "" {
		port.Protocol = v1.ProtocolTCP
	}
	switch {
	case port.Protocol != v1.ProtocolTCP && port.Protocol != v1.ProtocolUDP && port.Protocol != v1.ProtocolSCTP:
		s.problem(field+".protocol", "%q must be TCP, UDP or SCTP", port.Protocol)
	case port.Port < 1 || port.Port > 65535:
		s.problem(field+".port", "%d must be from 1 to 65535", port.Port)
	case port.NodePort < 0 || port.NodePort > 65535:
		s.problem(field+".nodePort", "%d must be from 1 to 65535", port.NodePort)
	default:
		return true
	}
	return false
}

// clusterIPs are the Service's valid cluster IPs of families that this node serves, at most one each.
func (s *service) clusterIPs() []netip.Addr {
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP}
	}
	var out []netip.Addr
	for i, text := range list {
		addr, ok := s.parseAddr(fmt.Sprintf("Service spec.clusterIPs[%d]", i), text)
		if !ok || !s.node.serves(addr) {
			continue
		}
		if slices.ContainsFunc(out, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
			s.problem(fmt.Sprintf("Service spec.clusterIPs[%d]", i), "%s is the second of its family: one each of IPv4 and IPv6 is allowed", text)
			continue
		}
		out = append(out, addr)
	}
	return out
}

func (n NodeInfo) serves(addr netip.Addr) bool {
	return n.IPv4 == n.IPv6 || addr.Is4() == n.IPv4
}

// parseAddr takes a unicast address, also with the leading zeros that old API servers let pass.
func (s *service) parseAddr(field, text string) (netip.Addr, bool) {
	addr, ok := parseIP(text)
	if !ok || addr.IsUnspecified() || addr.IsMulticast() {
		s.problem(field, "%q must be the IP address of one host", text)
		return netip.Addr{}, false
	}
	return addr, true
}

func parseIP(text string) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// external are addresses of the family from outside the cluster's own range. Loopback would take this host's own services from it.
func (s *service) external(field, text string, family netip.Addr) (netip.Addr, bool) {
	addr, ok := s.parseAddr(field, text)
	if ok && addr.IsLoopback() {
		s.problem(field, "%s is a loopback address: each host has its own", text)
		return addr, false
	}
	return addr, ok && addr.Is4() == family.Is4()
}

// buildPort adds the Routes of one port in the family of clusterIP.
func (s *service) buildPort(port v1.ServicePort, clusterIP netip.Addr) {
	name := ServicePortName{s.name, port.Name}
	all := s.endpoints[endpointKey{port.Name, port.Protocol, clusterIP.Is4()}]
	add := func(kind Kind, addr netip.Addr, number int32, local bool) *Route {
		backends, elsewhere := choose(all, local, s.node)
		s.out.routes = append(s.out.routes, Route{Service: name, Kind: kind, Protocol: port.Protocol, Affinity: s.affinity(),
			Front: netip.AddrPortFrom(addr, uint16(number)), Backends: backends, Drop: elsewhere, KeepClient: local && kind != ClusterIP})
		return &s.out.routes[len(s.out.routes)-1]
	}
	internal := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal
	externally := s.externalLocal()
	add(ClusterIP, clusterIP, port.Port, internal)
	for i, text := range s.Spec.ExternalIPs {
		if addr, ok := s.external(fmt.Sprintf("Service spec.externalIPs[%d]", i), text, clusterIP); ok {
			add(ExternalIP, addr, port.Port, externally)
		}
	}
	if s.Spec.Type == v1.ServiceTypeLoadBalancer {
		for i, ingress := range s.Status.LoadBalancer.Ingress {
			if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != v1.LoadBalancerIPModeVIP {
				continue // reached by name, or by a proxy that sends to node ports
			}
			if addr, ok := s.external(fmt.Sprintf("Service status.loadBalancer.ingress[%d].ip", i), ingress.IP, clusterIP); ok {
				add(LoadBalancer, addr, port.Port, externally).Sources = s.sources(clusterIP)
			}
		}
	}
	if port.NodePort != 0 && (s.Spec.Type == v1.ServiceTypeNodePort || s.Spec.Type == v1.ServiceTypeLoadBalancer) {
		unspecified := netip.IPv6Unspecified()
		if clusterIP.Is4() {
			unspecified = netip.IPv4Unspecified()
		}
		add(NodePort, unspecified, port.NodePort, externally)
	}
}

// mergeFronts leaves one Route for each front: an address may be listed twice, or as an external IP and as a load balancer's. The
// cluster IP comes first, for it has the Service's own policy; then the load balancer's Route, which knows who may come in.
func (s *service) mergeFronts() {
	rank := map[Kind]int{ClusterIP: 0, LoadBalancer: 1, ExternalIP: 2, NodePort: 3}
	slices.SortStableFunc(s.out.routes, func(a, b Route) int {
		return cmp.Or(a.Front.Compare(b.Front), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(rank[a.Kind], rank[b.Kind]))
	})
	s.out.routes = slices.CompactFunc(s.out.routes, func(a, b Route) bool { return a.Front == b.Front && a.Protocol == b.Protocol })
}

// externalLocal says whether traffic from outside the cluster may only go to endpoints on this node.
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
	return defaultAffinity
}

// sources are spec.loadBalancerSourceRanges of the family. As upstream has it, no range of the family, or the range of everything, let
// anyone in. Ranges that are all malformed let nobody in.
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
		nobody := netip.IPv6Unspecified()
		if family.Is4() {
			nobody = netip.IPv4Unspecified()
		}
		return []netip.Prefix{netip.PrefixFrom(nobody, nobody.BitLen())}
	}
	slices.SortFunc(out, comparePrefix)
	return slices.Compact(out)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// buildHealth adds the health check node port, whose count is of endpoints on this node that are ready, whatever their port. An
// endpoint of two families counts once: the family with more of them decides.
func (s *service) buildHealth() {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer || !s.externalLocal() {
		return
	}
	port := s.Spec.HealthCheckNodePort
	if port < 1 || port > 65535 {
		s.problem("Service spec.healthCheckNodePort", "%d must be from 1 to 65535 with externalTrafficPolicy Local", port)
		return
	}
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
