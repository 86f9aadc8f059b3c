package hns

import (
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/Microsoft/hcsshim/hcn"
)

// completePolicies adds the policies for Services and pods that an endpoint lacks, because its creator may not have
// known all ranges yet. It removes nothing, and does not touch a complete endpoint.
func completePolicies(e *hcn.HostComputeEndpoint, routes, keep []netip.Prefix) error {
	return errors.Join(addRoutes(e, routes), addExceptions(e, keep))
}

// addRoutes adds the ROUTE policies that an endpoint lacks.
func addRoutes(e *hcn.HostComputeEndpoint, want []netip.Prefix) error {
	var have []string
	for _, p := range e.Policies {
		var s hcn.SDNRoutePolicySetting
		if p.Type == hcn.SDNRoute && json.Unmarshal(p.Settings, &s) == nil {
			have = append(have, s.DestinationPrefix)
		}
	}
	var request hcn.PolicyEndpointRequest
	for _, prefix := range lacking(have, want) {
		settings, _ := json.Marshal(hcn.SDNRoutePolicySetting{DestinationPrefix: prefix, NeedEncap: true}) // cannot fail
		request.Policies = append(request.Policies, hcn.EndpointPolicy{Type: hcn.SDNRoute, Settings: settings})
	}
	if len(request.Policies) == 0 {
		return nil
	}
	return gone(known("cannot add routes to endpoint "+e.Id, e.ApplyPolicy(hcn.RequestTypeAdd, request)))
}

// addExceptions adds the missing exceptions to an endpoint's OutBoundNAT policy; an endpoint without that policy needs
// none. HNS replaces the policy (hcsshim hcn.go, RequestTypeUpdate).
func addExceptions(e *hcn.HostComputeEndpoint, want []netip.Prefix) error {
	for _, p := range e.Policies {
		var s hcn.OutboundNatPolicySetting
		if p.Type != hcn.OutBoundNAT || len(p.Settings) > 0 && json.Unmarshal(p.Settings, &s) != nil {
			continue
		}
		more := lacking(s.Exceptions, want)
		if len(more) == 0 {
			return nil
		}
		s.Exceptions = append(s.Exceptions, more...)
		settings, _ := json.Marshal(s) // cannot fail
		request := hcn.PolicyEndpointRequest{Policies: []hcn.EndpointPolicy{{Type: hcn.OutBoundNAT, Settings: settings}}}
		return gone(known("cannot add exceptions of OutBoundNAT to endpoint "+e.Id, e.ApplyPolicy(hcn.RequestTypeUpdate, request)))
	}
	return nil
}

// CompleteEndpoints adds the policies for Services and pods that the pods' endpoints of o's network lack.
func CompleteEndpoints(o Overlay) error {
	network, err := hcn.GetNetworkByName(o.Name)
	if err != nil {
		return known("cannot read network "+o.Name, err)
	}
	list, err := endpointsOf(network.Id)
	if err != nil {
		return known("cannot list the endpoints of "+o.Name, err)
	}
	var errs []error
	for i := range list {
		if e := &list[i]; e.Flags&hcn.EndpointFlagsRemoteEndpoint == 0 && containerOf(e.Name, o.Name) != "" {
			errs = append(errs, completePolicies(e, o.Services, o.Keep))
		}
	}
	return errors.Join(errs...)
}
