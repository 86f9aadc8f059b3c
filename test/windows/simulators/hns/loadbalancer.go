package hns

import (
	"net/netip"
	"slices"
	"strings"
)

// Flags of load balancers and their port mappings (hcsshim hcnloadbalancer.go; VipExternalIP: upstream winkernel/hns.go).
const (
	dsr, ipv6                                               = 1, 2
	ilb, localRoutedVIP, useMux, preserveDIP, externalIPVIP = 1, 2, 4, 8, 16
)

// checkLoadBalancer refuses what HNS cannot serve. self is the ID of the modified load balancer, if any.
func (h *HNS) checkLoadBalancer(lb *LoadBalancer, self string) error {
	if lb.Flags&^(dsr|ipv6) != 0 {
		return unknown(InvalidParameter, "Flags are %d", lb.Flags)
	}
	if lb.Flags&dsr != 0 && !h.v().supports("DSR") {
		return fail(Unsupported, "HNS %s has no direct server return", h.v())
	}
	if lb.Flags&ipv6 != 0 && !h.v().supports("IPv6") {
		return fail(Unsupported, "HNS %s has no IPv6 load balancers", h.v())
	}
	if len(lb.HostComputeEndpoints) == 0 || len(lb.PortMappings) == 0 {
		return fail(InvalidPolicy, "%d endpoints, %d port mappings", len(lb.HostComputeEndpoints), len(lb.PortMappings))
	}
	if err := h.checkReferences(lb); err != nil {
		return err
	}
	for _, text := range slices.Concat(lb.FrontendVIPs, []string{lb.SourceVIP}) {
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Is6() != (lb.Flags&ipv6 != 0) {
			return fail(InvalidIP, "VIP %q with flags %d", text, lb.Flags)
		}
	}
	for i := range lb.PortMappings {
		if err := h.checkPort(lb, &lb.PortMappings[i], self); err != nil {
			return err
		}
	}
	return nil
}

// checkReferences requires that the endpoints exist and belong to one network, the load balancer's (HostComputeNetwork in
// Get-HnsPolicyList, projectcalico/calico#8465).
func (h *HNS) checkReferences(lb *LoadBalancer) error {
	for i, id := range lb.HostComputeEndpoints {
		e, err := h.endpoint(id)
		if err != nil {
			return err
		}
		if i > 0 && e.HostComputeNetwork != lb.network {
			return fail(InvalidParameter, "endpoint %s is of another network", id)
		}
		lb.network = e.HostComputeNetwork
		if slices.ContainsFunc(lb.HostComputeEndpoints[:i], func(other string) bool { return strings.EqualFold(other, id) }) {
			return fail(InvalidParameter, "endpoint %s is named twice", id)
		}
	}
	return nil
}

func (h *HNS) checkPort(lb *LoadBalancer, p *PortMapping, self string) error {
	switch {
	case p.InternalPort == 0:
		return fail(InvalidInternalPort, "InternalPort is 0")
	case p.ExternalPort == 0:
		return fail(InvalidParameter, "ExternalPort is 0")
	case !slices.Contains([]uint32{6, 17, 132}, p.Protocol):
		return fail(InvalidParameter, "Protocol is %d, want 6, 17 or 132", p.Protocol)
	case p.Flags&^(ilb|localRoutedVIP|useMux|preserveDIP|externalIPVIP) != 0:
		return unknown(InvalidParameter, "flags of the port mapping are %d", p.Flags)
	case p.DistributionType > 2:
		return unknown(InvalidParameter, "DistributionType is %d", p.DistributionType)
	}
	if !h.v().supports("SessionAffinity") {
		// Upstream's proxy sets it on Server 2019 too, and only logs that it is not supported (proxier.go, syncProxyRules).
		p.DistributionType = 0
	}
	for _, other := range h.loadBalancers {
		if other.ID == self || other.Flags&ipv6 != lb.Flags&ipv6 || !slices.ContainsFunc(other.PortMappings, func(q PortMapping) bool {
			return q.Protocol == p.Protocol && q.ExternalPort == p.ExternalPort
		}) {
			continue
		}
		// Without a VIP the load balancer takes the host's own port, which only one can have (microsoft/hcsshim#1043,
		// kubernetes/community#8883).
		if len(lb.FrontendVIPs) == 0 && len(other.FrontendVIPs) == 0 {
			return fail(PortExists, "port %d is there", p.ExternalPort)
		}
		// The same front twice is refused: kubernetes/kubernetes#139519.
		if i := slices.IndexFunc(lb.FrontendVIPs, func(vip string) bool { return slices.Contains(other.FrontendVIPs, vip) }); i >= 0 {
			return fail(AlreadyExists, "front %s:%d is there", lb.FrontendVIPs[i], p.ExternalPort)
		}
	}
	return nil
}

func (h *HNS) createLoadBalancer(lb *LoadBalancer) error {
	if err := h.checkLoadBalancer(lb, ""); err != nil {
		return err
	}
	if err := h.identify(&lb.ID, "loadbalancer"); err != nil {
		return err
	}
	h.loadBalancers = append(h.loadBalancers, lb)
	return nil
}

// modifyLoadBalancer replaces the whole load balancer with that ID. HNS before 15.5 does not implement it (hnslib hcnglobals.go; upstream's
// handleUpdateLoadbalancerFailure expects E_NOTIMPL).
func (h *HNS) modifyLoadBalancer(lb *LoadBalancer, settings string) error {
	if !h.v().supports("ModifyLoadBalancer") {
		return fail(NotImplemented, "HNS %s cannot modify load balancers", h.v())
	}
	var next LoadBalancer
	if err := decode(settings, &next); err != nil {
		return err
	}
	if err := next.SchemaVersion.v2(); err != nil {
		return err
	}
	if next.ID != "" && !strings.EqualFold(next.ID, lb.ID) {
		return fail(InvalidParameter, "ID is %s, the handle is of %s", next.ID, lb.ID)
	}
	if err := h.checkLoadBalancer(&next, lb.ID); err != nil {
		return err
	}
	next.ID = lb.ID
	*lb = next
	return nil
}

// answered returns a load balancer as HNS reports it. Upstream's proxy converts the IDs of endpoints and those in load balancers to upper case
// before it compares them (winkernel/hns.go, hashEndpoints). No documented schema has the flag for external addresses, so that an HNS that drops
// unknown settings drops it.
func (h *HNS) answered(lb LoadBalancer) *LoadBalancer {
	if h.order != nil {
		lb.HostComputeEndpoints = slices.Clone(lb.HostComputeEndpoints)
		for i, id := range lb.HostComputeEndpoints {
			lb.HostComputeEndpoints[i] = strings.ToUpper(id)
		}
		disordered(h, lb.HostComputeEndpoints)
	}
	if h.drops {
		lb.PortMappings = slices.Clone(lb.PortMappings)
		for i := range lb.PortMappings {
			lb.PortMappings[i].Flags &^= externalIPVIP
		}
	}
	return &lb
}

// deleteLoadBalancer fails if the network is gone (moby/libnetwork#2620, Server 2019).
func (h *HNS) deleteLoadBalancer(id string) error {
	lb, err := h.loadBalancer(id)
	if err != nil {
		return err
	}
	if _, err := h.network(lb.network); err != nil {
		return err
	}
	h.loadBalancers = slices.DeleteFunc(h.loadBalancers, func(o *LoadBalancer) bool { return o == lb })
	return nil
}

func (h *HNS) deleteRoute(id string) error {
	r, err := h.route(id)
	if err != nil {
		return err
	}
	h.routes = slices.DeleteFunc(h.routes, func(o *SDNRoute) bool { return o == r })
	return nil
}

func (h *HNS) createRoute(r *SDNRoute) error {
	if len(r.HostComputeEndpoints) == 0 || len(r.Setting) == 0 {
		return fail(InvalidPolicy, "%d endpoints, %d settings", len(r.HostComputeEndpoints), len(r.Setting))
	}
	for _, id := range r.HostComputeEndpoints {
		if _, err := h.endpoint(id); err != nil {
			return err
		}
	}
	for i := range r.Setting {
		if err := checkSettings(&r.Setting[i]); err != nil {
			return err
		}
		if _, err := netip.ParseAddr(r.Setting[i].NextHop); err != nil && !r.Setting[i].NeedEncap {
			return fail(InvalidPolicy, "NextHop is %q", r.Setting[i].NextHop)
		}
	}
	if err := h.identify(&r.ID, "route"); err != nil {
		return err
	}
	h.routes = append(h.routes, r)
	return nil
}

// namespaceTypes are those in hcsshim's hcnnamespace.go.
var namespaceTypes = []string{"Host", "HostDefault", "Guest", "GuestDefault"}

func (h *HNS) createNamespace(ns *Namespace) error {
	if ns.Type == "" {
		ns.Type = "Host"
	}
	if !slices.Contains(namespaceTypes, ns.Type) {
		return fail(InvalidParameter, "Type is %q", ns.Type)
	}
	if err := h.identify(&ns.ID, "namespace"); err != nil {
		return err
	}
	h.lastCompartment++
	ns.NamespaceId = h.lastCompartment
	h.namespaces = append(h.namespaces, ns)
	return nil
}

// modifyNamespace adds or removes an endpoint or a container. Remote endpoints cannot be in a namespace.
func (h *HNS) modifyNamespace(ns *Namespace, m modification) error {
	var settings struct {
		EndpointId, ContainerId string `json:",omitempty"`
	}
	if err := decode(string(m.Settings), &settings); err != nil {
		return err
	}
	id := settings.EndpointId
	switch m.ResourceType {
	case "Endpoint":
		e, err := h.endpoint(id)
		if err != nil {
			return err
		}
		if e.remote() {
			return fail(InvalidRemoteOperation, "endpoint %s is remote", id)
		}
		if m.RequestType == "Add" {
			if e.HostComputeNamespace != "" {
				return fail(InNamespace, "endpoint %s is in namespace %s", id, e.HostComputeNamespace)
			}
			e.HostComputeNamespace = ns.ID
		} else if strings.EqualFold(e.HostComputeNamespace, ns.ID) {
			e.HostComputeNamespace = ""
		}
	case "Container":
		id = settings.ContainerId
	default:
		return unknown(Unsupported, "ResourceType %q of a namespace is not simulated", m.ResourceType)
	}
	i := slices.IndexFunc(ns.Resources, func(r Resource) bool { return r.Type == m.ResourceType && strings.EqualFold(r.Data.ID, id) })
	switch {
	case m.RequestType == "Add" && i < 0:
		resource := Resource{Type: m.ResourceType}
		resource.Data.ID = id
		ns.Resources = append(ns.Resources, resource)
	case m.RequestType == "Add":
		return fail(ObjectExists, "%s %s is there", m.ResourceType, id)
	case m.RequestType == "Remove" && i >= 0:
		ns.Resources = slices.Delete(ns.Resources, i, i+1)
	case m.RequestType == "Remove":
		return fail(ElementNotFound, "%s %s is not there", m.ResourceType, id)
	default:
		return unknown(Unsupported, "RequestType %q of a namespace is not simulated", m.RequestType)
	}
	return nil
}

func (h *HNS) deleteNamespace(id string) error {
	ns, err := h.namespace(id)
	if err != nil {
		return err
	}
	for _, r := range ns.Resources {
		if r.Type == "Container" {
			return fail(HasReferences, "container %s is in it", r.Data.ID)
		}
		if e, err := h.endpoint(r.Data.ID); err == nil {
			e.HostComputeNamespace = ""
		}
	}
	h.namespaces = slices.DeleteFunc(h.namespaces, func(o *Namespace) bool { return o == ns })
	return nil
}
