package proxy

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// endpointKey must match for an endpoint to serve a Service's port.
type endpointKey struct {
	port     string
	protocol v1.Protocol
	ipv4     bool
}

// endpoint is one address and port of a Service's EndpointSlices.
type endpoint struct {
	addr                               netip.AddrPort
	local, ready, serving, terminating bool
	zones, nodes                       []string // hints
}

// draining reports whether the endpoint still serves but is about to end (KEP-1672).
func (e *endpoint) draining() bool { return !e.ready && e.serving && e.terminating }

// rank orders the entries of several slices for one endpoint: while it moves between slices, it may be in both.
func (e *endpoint) rank() int {
	switch {
	case e.ready:
		return 0
	case e.serving:
		return 1
	}
	return 2
}

// endpointSet has each endpoint once, sorted by address.
type endpointSet map[endpointKey][]endpoint

// sliceService returns the Service of a slice; false: a service proxy must ignore the slice.
func sliceService(slice *discovery.EndpointSlice) (ServiceName, bool) {
	name := slice.Labels[discovery.LabelServiceName]
	_, other := slice.Labels[labelProxyName]
	_, headless := slice.Labels[labelHeadless]
	return ServiceName{Namespace: slice.Namespace, Name: name}, name != "" && !other && !headless
}

// mergeSlices merges a Service's slices, which are sorted by name.
func (s *service) mergeSlices(list []*discovery.EndpointSlice) endpointSet {
	set := endpointSet{}
	for _, slice := range list {
		s.addSlice(set, slice)
	}
	for key, endpoints := range set {
		slices.SortStableFunc(endpoints, func(a, b endpoint) int {
			return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.rank(), b.rank()))
		})
		set[key] = slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.addr == b.addr })
	}
	return set
}

func (s *service) addSlice(set endpointSet, slice *discovery.EndpointSlice) {
	if slice.AddressType != discovery.AddressTypeIPv4 && slice.AddressType != discovery.AddressTypeIPv6 {
		s.problem("EndpointSlice "+slice.Name+" addressType", "%q must be IPv4 or IPv6", slice.AddressType)
		return
	}
	ipv4 := slice.AddressType == discovery.AddressTypeIPv4
	addrs := make([]netip.Addr, len(slice.Endpoints))
	for i := range slice.Endpoints {
		addrs[i] = s.endpointAddr(position{slice.Name, "endpoints", i, ".addresses"}, slice.Endpoints[i].Addresses, ipv4)
	}
	for i, port := range slice.Ports {
		if port.Port == nil || *port.Port < 1 || *port.Port > 65535 {
			s.problem(position{slice.Name, "ports", i, ".port"}.String(), "%d must be from 1 to 65535", ptr.Deref(port.Port, 0))
			continue
		}
		key := endpointKey{ptr.Deref(port.Name, ""), ptr.Deref(port.Protocol, v1.ProtocolTCP), ipv4}
		set[key] = slices.Grow(set[key], len(slice.Endpoints))
		for j := range slice.Endpoints {
			if addrs[j].IsValid() {
				set[key] = append(set[key], s.endpoint(&slice.Endpoints[j], netip.AddrPortFrom(addrs[j], uint16(*port.Port))))
			}
		}
	}
}

// endpointAddr returns the address of an endpoint, or the zero Addr if it is invalid. The API guarantees that the first
// address is sufficient.
func (s *service) endpointAddr(field position, list []string, ipv4 bool) netip.Addr {
	if len(list) == 0 {
		s.problem(field.String(), "is empty: one address is needed")
		return netip.Addr{}
	}
	field.rest = ".addresses[0]"
	addr, ok := s.parseAddr(field, list[0])
	if ok && addr.Is4() != ipv4 {
		s.problem(field.String(), "%s is not of the slice's family", list[0])
		return netip.Addr{}
	}
	if addr.IsLinkLocalUnicast() { // it would lead to services of the host's cloud provider (CVE-2021-25737)
		s.problem(field.String(), "%s is a link-local address: no pod has one", list[0])
		return netip.Addr{}
	}
	return addr
}

func (s *service) endpoint(e *discovery.Endpoint, addr netip.AddrPort) endpoint {
	out := endpoint{addr: addr,
		local:       s.node.Name != "" && ptr.Deref(e.NodeName, "") == s.node.Name,
		ready:       ptr.Deref(e.Conditions.Ready, true),
		serving:     ptr.Deref(e.Conditions.Serving, true),
		terminating: ptr.Deref(e.Conditions.Terminating, false)}
	if e.Hints != nil {
		for _, zone := range e.Hints.ForZones {
			out.zones = append(out.zones, zone.Name)
		}
		for _, node := range e.Hints.ForNodes {
			out.nodes = append(out.nodes, node.Name)
		}
	}
	return out
}

// choose picks the back ends of a Route: the ready endpoints; with onlyLocal those on this node, otherwise those whose
// hints match it (KEP-2433, KEP-4444, KEP-3015). It adds, flagged, the endpoints that terminate but still serve: they
// keep their connections and get new traffic when no endpoint is ready. elsewhere: there is none here, but the Service
// has endpoints on other nodes.
func choose(all []endpoint, onlyLocal bool, node NodeInfo) (backends []Endpoint, elsewhere bool) {
	usable := func(*endpoint) bool { return true }
	if onlyLocal {
		usable = func(e *endpoint) bool { return e.local }
	} else if hinted := hintFilter(all, node); hinted != nil {
		usable = hinted
	}
	chosen := func(e *endpoint) bool { return e.ready && usable(e) || e.draining() && (!onlyLocal || e.local) }
	count := 0
	for i := range all {
		if chosen(&all[i]) {
			count++
		}
	}
	if count > 0 {
		backends = make([]Endpoint, 0, count) // exact capacity, because they are kept
	}
	for i := range all {
		e := &all[i]
		switch {
		case chosen(e):
			backends = append(backends, Endpoint{Addr: e.addr, Local: e.local, Terminating: e.draining()})
		case e.ready || e.draining():
			elsewhere = true
		}
	}
	return backends, elsewhere && len(backends) == 0
}

// hintFilter returns a filter for the ready endpoints whose hints match node; nil: hints do not apply, because one is
// missing or none matches. Hints for nodes take precedence over hints for zones.
func hintFilter(all []endpoint, node NodeInfo) func(*endpoint) bool {
	forNode := func(e *endpoint) []string { return e.nodes }
	forZone := func(e *endpoint) []string { return e.zones }
	for _, hint := range []struct {
		of   func(*endpoint) []string
		want string
	}{{forNode, node.Name}, {forZone, node.Zone}} {
		complete, ours := true, false
		for i := range all {
			if !all[i].ready {
				continue
			}
			complete = complete && len(hint.of(&all[i])) > 0
			ours = ours || slices.Contains(hint.of(&all[i]), hint.want)
		}
		if complete && ours {
			return func(e *endpoint) bool { return slices.Contains(hint.of(e), hint.want) }
		}
	}
	return nil
}
