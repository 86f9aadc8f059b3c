package hns

import (
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Listing is a load balancer as the first version of the HNS API lists it, which lists those of the second too.
type Listing struct {
	Fronts   []string // address:port, or :port on all addresses of the host
	Networks []string // names of its endpoints' networks, sorted; none: its endpoints do not exist
}

// policyList is an object of the first version of the API: a load balancer if a policy has type ELB.
type policyList struct {
	References []string // /endpoints/GUID
	Policies   []json.RawMessage
}

// listings returns the load balancers among policy lists. networks has the name of each endpoint's network.
func listings(lists []policyList, networks map[ID]string) (out []Listing) {
	for _, list := range lists {
		var l Listing
		balances := false
		for _, text := range list.Policies {
			var policy struct {
				Type         string
				VIPs         []string
				ExternalPort uint16
			}
			if json.Unmarshal(text, &policy) != nil || policy.Type != "ELB" {
				continue
			}
			balances = true
			if len(policy.VIPs) == 0 {
				policy.VIPs = []string{""}
			}
			for _, vip := range policy.VIPs {
				l.Fronts = append(l.Fronts, net.JoinHostPort(vip, strconv.Itoa(int(policy.ExternalPort))))
			}
		}
		if !balances {
			continue
		}
		for _, reference := range list.References {
			if name, ok := networks[IDOf(reference[strings.LastIndexByte(reference, '/')+1:])]; ok {
				l.Networks = append(l.Networks, name)
			}
		}
		slices.Sort(l.Networks)
		l.Networks = slices.Compact(l.Networks)
		out = append(out, l)
	}
	return out
}
