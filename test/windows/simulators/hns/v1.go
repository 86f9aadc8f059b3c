package hns

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// hnsCall is HNSCall of vmcompute.dll: HNS v1, a REST-like interface. Paths are those of hcsshim's internal/hns.
func (h *HNS) hnsCall(method, path, request string) (string, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	id, rest := "", ""
	if len(parts) > 1 {
		id = parts[1]
	}
	if len(parts) > 2 {
		rest = parts[2]
	}
	var output any
	var err error
	switch parts[0] {
	case "globals":
		output, err = h.globals(method, id)
	case "networks":
		output, err = h.v1Networks(method, id, request)
	case "endpoints":
		output, err = h.v1Endpoints(method, id, rest, request)
	case "policylists":
		output, err = h.v1PolicyLists(method, id, request)
	case "endpointstats":
		output, err = h.v1Stats(method, id)
	default:
		err = unknown(InvalidParameter, "%s %s is not simulated", method, path)
	}
	if err != nil {
		return "", err
	}
	return encode(struct {
		Success bool
		Output  any `json:",omitempty"`
	}{true, output}), nil
}

// globals answers /globals/version. HNS of Server 2016 does not have the path (hcsshim hcnsupport.go: "this is expected
// on pre 1803 builds").
func (h *HNS) globals(method, id string) (any, error) {
	if method != "GET" || id != "version" {
		return nil, unknown(InvalidParameter, "%s globals/%s is not simulated", method, id)
	}
	if h.version == nil {
		return nil, fail(InvalidParameter, "HNS of build %d has no globals", h.build)
	}
	return *h.version, nil
}

func (h *HNS) v1Networks(method, id, request string) (any, error) {
	switch {
	case method == "GET" && id == "":
		out := []v1Network{}
		for _, n := range h.networks {
			h.settle(n)
			out = append(out, h.networkV1(n))
		}
		return disordered(h, out), nil
	case method == "POST" && id == "":
		var in v1Network
		if err := decode(request, &in); err != nil {
			return nil, err
		}
		n, err := in.v2()
		if err != nil {
			return nil, err
		}
		if err := h.createNetwork(n); err != nil {
			return nil, err
		}
		h.settle(n)
		return h.networkV1(n), nil
	}
	n, err := h.network(id)
	if err != nil {
		return nil, err
	}
	switch method {
	case "GET":
		h.settle(n)
		return h.networkV1(n), nil
	case "DELETE":
		return nil, h.deleteNetwork(id)
	}
	return nil, unknown(InvalidParameter, "%s networks/%s is not simulated", method, id)
}

func (h *HNS) v1Endpoints(method, id, verb, request string) (any, error) {
	switch {
	case method == "GET" && id == "":
		out := []v1Endpoint{}
		for _, e := range h.endpoints {
			out = append(out, h.endpointV1(e))
		}
		return disordered(h, out), nil
	case method == "POST" && id == "":
		var in v1Endpoint
		if err := decode(request, &in); err != nil {
			return nil, err
		}
		e, err := in.v2()
		if err != nil {
			return nil, err
		}
		n, err := h.network(in.VirtualNetwork)
		if err != nil {
			return nil, err
		}
		if err := h.createEndpoint(n, e); err != nil {
			return nil, err
		}
		return h.endpointV1(e), nil
	}
	e, err := h.endpoint(id)
	if err != nil {
		return nil, err
	}
	switch {
	case method == "GET" && verb == "":
		return h.endpointV1(e), nil
	case method == "DELETE" && verb == "":
		h.dropEndpoint(e)
		return nil, nil
	case method == "POST" && verb == "":
		return h.v1UpdateEndpoint(e, request)
	case method == "POST" && (verb == "attach" || verb == "detach"):
		return nil, h.v1Attach(e, verb == "attach", request)
	}
	return nil, unknown(InvalidParameter, "%s endpoints/%s/%s is not simulated", method, id, verb)
}

// v1UpdateEndpoint replaces an endpoint's policies.
func (h *HNS) v1UpdateEndpoint(e *Endpoint, request string) (any, error) {
	var in v1Endpoint
	if err := decode(request, &in); err != nil {
		return nil, err
	}
	next, err := policiesV2(in.Policies)
	if err != nil {
		return nil, err
	}
	if err := h.v().checkPolicies("endpoint", next); err != nil {
		return nil, err
	}
	e.Policies = next
	return h.endpointV1(e), nil
}

// v1Attach attaches an endpoint to a container or to the host (hcsshim hnsendpoint.go, EndpointAttachDetachRequest).
func (h *HNS) v1Attach(e *Endpoint, attach bool, request string) error {
	var in struct {
		ContainerId    string
		SystemType     string
		CompartmentId  uint16
		VirtualNicName string
	}
	if err := decode(request, &in); err != nil {
		return err
	}
	if e.remote() {
		return fail(InvalidRemoteOperation, "endpoint %s is remote", e.ID)
	}
	if n, err := h.network(e.HostComputeNetwork); err == nil && n.Type == "Overlay" {
		// libnetwork's overlay driver and win-overlay give each overlay endpoint the policy PA. No source shows that one works without it.
		if _, ok := find[providerAddressPolicy](e.Policies, "ProviderAddress"); !ok {
			return fail(InvalidPolicy, "endpoint %s of an overlay network has no provider address", e.ID)
		}
	}
	name := in.ContainerId
	switch in.SystemType {
	case "Host":
		name = "host"
	case "Container":
	default:
		return unknown(InvalidParameter, "SystemType %q is not simulated", in.SystemType)
	}
	is := slices.Contains(e.attached, name)
	switch {
	case attach && is: // projectcalico/calico#4280
		return fail(AlreadyAttached, "endpoint %s is attached to %s", e.ID, name)
	case !attach && !is:
		return fail(ElementNotFound, "endpoint %s is not attached to %s", e.ID, name)
	case name == "host":
		h.hostAttached(e, attach)
	case attach:
		e.attached = append(e.attached, name)
	default:
		e.attached = slices.DeleteFunc(e.attached, func(a string) bool { return a == name })
	}
	return nil
}

// Attach attaches a container of the Host Compute Service to an endpoint or detaches it, as HCS does when a network is added to a running container
// (hcsshim hnsendpoint.go modifyNetworkEndpoint).
func (h *HNS) Attach(container, endpoint string, attach bool) (Result, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running {
		return ServiceNotActive, "the service is down"
	}
	e, err := h.endpoint(endpoint)
	if err == nil {
		err = h.v1Attach(e, attach, encode(map[string]string{"ContainerId": container, "SystemType": "Container"}))
	}
	if err != nil {
		f := resultOf(err)
		return f.code, f.detail
	}
	return 0, ""
}

// Connection is the network configuration that a container gets from an endpoint.
type Connection struct {
	Network string // the type of the network
	Address netip.Prefix
	Gateway netip.Addr // invalid means none
}

// Connection returns what a container gets from an endpoint; ok is false if there is no such endpoint.
func (h *HNS) Connection(endpoint string) (c Connection, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, err := h.endpoint(endpoint)
	if err != nil {
		return c, false
	}
	if n, err := h.network(e.HostComputeNetwork); err == nil {
		c.Network = n.Type
	}
	addr, bits := e.addressOf(false)
	c.Address = netip.PrefixFrom(addr, int(bits))
	c.Gateway, _ = netip.ParseAddr(e.gateway("0.0.0.0/0")) // "" is the zero Addr
	return c, addr.IsValid()
}

// v1Stats returns zeros: a simulated network has no traffic.
func (h *HNS) v1Stats(method, id string) (any, error) {
	e, err := h.endpoint(id)
	if err != nil || method != "GET" {
		return nil, err
	}
	return map[string]any{"EndpointId": e.ID, "InstanceId": e.ID, "BytesReceived": 0, "BytesSent": 0, "PacketsReceived": 0, "PacketsSent": 0,
		"DroppedPacketsIncoming": 0, "DroppedPacketsOutgoing": 0}, nil
}

var reference = regexp.MustCompile(`^/endpoints/([0-9A-Fa-f-]{36})$`)

// v1PolicyLists serves the load balancers (ELB) and routes (ROUTE) of HNS v1.
func (h *HNS) v1PolicyLists(method, id, request string) (any, error) {
	switch {
	case method == "GET" && id == "":
		out := []v1PolicyList{}
		for _, l := range h.loadBalancers {
			out = append(out, h.loadBalancerV1(l))
		}
		for _, r := range h.routes {
			out = append(out, h.routeV1(r))
		}
		return disordered(h, out), nil
	case method == "POST" && id == "":
		var in v1PolicyList
		if err := decode(request, &in); err != nil {
			return nil, err
		}
		return h.v1CreatePolicyList(in)
	}
	l, lbErr := h.loadBalancer(id)
	r, routeErr := h.route(id)
	switch {
	case lbErr != nil && routeErr != nil:
		return nil, lbErr
	case method == "GET" && lbErr == nil:
		return h.loadBalancerV1(l), nil
	case method == "GET":
		return h.routeV1(r), nil
	case method == "DELETE" && lbErr == nil:
		return nil, h.deleteLoadBalancer(id)
	case method == "DELETE":
		return nil, h.deleteRoute(id)
	}
	return nil, unknown(InvalidParameter, "%s policylists/%s is not simulated", method, id)
}

func (h *HNS) v1CreatePolicyList(in v1PolicyList) (any, error) {
	var ids []string
	for _, text := range in.References {
		match := reference.FindStringSubmatch(text)
		if match == nil {
			return nil, fail(InvalidPolicy, "reference %q", text)
		}
		ids = append(ids, match[1])
	}
	if len(in.Policies) != 1 {
		return nil, unknown(InvalidPolicy, "a list of %d policies is not simulated", len(in.Policies))
	}
	var head struct{ Type string }
	if err := json.Unmarshal(in.Policies[0], &head); err != nil {
		return nil, fail(InvalidJSON, "%v", err)
	}
	switch head.Type {
	case "ELB":
		l, err := elbV2(in.Policies[0], ids)
		if err != nil {
			return nil, err
		}
		if err := h.createLoadBalancer(l); err != nil {
			return nil, err
		}
		return h.loadBalancerV1(l), nil
	case "ROUTE":
		r, err := routeV2(in.Policies[0], ids)
		if err != nil {
			return nil, err
		}
		if err := h.createRoute(r); err != nil {
			return nil, err
		}
		return h.routeV1(r), nil
	}
	return nil, unknown(InvalidPolicyType, "a policy list of %q is not simulated", head.Type)
}

// addressOf parses an endpoint's address of one family.
func (e *Endpoint) addressOf(six bool) (netip.Addr, uint8) {
	for _, c := range e.IpConfigurations {
		if addr, err := netip.ParseAddr(c.IpAddress); err == nil && addr.Is6() == six {
			return addr, c.PrefixLength
		}
	}
	return netip.Addr{}, 0
}
