package hns

import (
	"errors"

	"github.com/Microsoft/hcsshim"
)

// Listings lists the load balancers of HNS in two calls, on all versions of Windows.
func Listings() ([]Listing, error) {
	found, err := hcsshim.HNSListPolicyListRequest()
	endpoints, unknown := hcsshim.HNSListEndpointRequest()
	if err := errors.Join(err, unknown); err != nil {
		return nil, known("cannot list load balancers", err)
	}
	lists, networks := make([]policyList, len(found)), map[ID]string{}
	for i, l := range found {
		lists[i] = policyList{l.EndpointReferences, l.Policies}
	}
	for i := range endpoints {
		networks[IDOf(endpoints[i].Id)] = endpoints[i].VirtualNetworkName
	}
	return listings(lists, networks), nil
}
