package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
)

// MakeBridge makes b's network, without endpoints, and returns its ID. One of that name is adopted when it is of the kind and has the range.
func MakeBridge(b Bridge) (id string, err error) {
	found, err := hcn.GetNetworkByName(b.Name)
	if err != nil {
		if err = known("cannot look for network "+b.Name, err); !errors.Is(err, ErrNotFound) {
			return "", err
		}
		made, err := bridgeNetwork(b).Create()
		if err != nil {
			return "", known("cannot create network "+b.Name, err)
		}
		return made.Id, nil
	}
	for _, ipam := range found.Ipams {
		for _, subnet := range ipam.Subnets {
			if found.Type == hcn.L2Bridge && subnet.IpAddressPrefix == b.Subnet.String() {
				return found.Id, nil
			}
		}
	}
	return "", fmt.Errorf("HNS has a network %q of type %s that is not %s with %s; remove it (Get-HnsNetwork | ? Name -eq %[1]s | Remove-HnsNetwork) or drain this node",
		b.Name, found.Type, hcn.L2Bridge, b.Subnet)
}

// bridgeNetwork leaves the gateway's address to an endpoint.
func bridgeNetwork(b Bridge) *hcn.HostComputeNetwork {
	n := &hcn.HostComputeNetwork{Name: b.Name, Type: hcn.L2Bridge, SchemaVersion: hcn.V2SchemaVersion(),
		Ipams: []hcn.Ipam{{Type: "Static", Subnets: []hcn.Subnet{{IpAddressPrefix: b.Subnet.String(), Flags: hcn.SubnetFlagsDoNotReserveGatewayAddress,
			Routes: []hcn.Route{{NextHop: b.Gateway.String(), DestinationPrefix: "0.0.0.0/0"}}}}}}}
	if b.Adapter != "" {
		settings, _ := json.Marshal(hcn.NetAdapterNameNetworkPolicySetting{NetworkAdapterName: b.Adapter}) // a string: cannot fail
		n.Policies = []hcn.NetworkPolicy{{Type: hcn.NetAdapterName, Settings: settings}}
	}
	return n
}

// JoinBridge gives the host its endpoint in b's network, attached to the host itself where attach says so, and the pods' endpoints their routes.
func JoinBridge(b Bridge, attach bool) error {
	network, err := hcn.GetNetworkByName(b.Name)
	if err != nil {
		return known("cannot read network "+b.Name, err)
	}
	list, err := hcn.ListEndpointsOfNetwork(network.Id)
	if err != nil {
		return known("cannot list the endpoints of "+b.Name, err)
	}
	own, errs := "", []error{}
	for i := range list {
		switch e := &list[i]; {
		case e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0:
		case strings.EqualFold(e.Name, b.Name):
			own = e.Id
		default:
			errs = append(errs, addRoutes(e, b.Routes))
		}
	}
	return errors.Join(append(errs, joinHost(b, network, own, attach))...)
}

// joinHost makes the host's endpoint where own is "", and attaches it: 1 is the host's network compartment.
func joinHost(b Bridge, network *hcn.HostComputeNetwork, own string, attach bool) error {
	if own == "" {
		made, err := network.CreateEndpoint(&hcn.HostComputeEndpoint{Name: b.Name, SchemaVersion: hcn.V2SchemaVersion(),
			IpConfigurations: []hcn.IpConfig{{IpAddress: b.Gateway.String(), PrefixLength: uint8(b.Subnet.Bits())}}})
		if err != nil {
			return known("cannot create the host's endpoint in "+b.Name, err)
		}
		own, attach = made.Id, true
	}
	if !attach {
		return nil
	}
	return known("cannot attach the host to "+b.Name, (&hcsshim.HNSEndpoint{Id: own}).HostAttach(1))
}

// addRoutes adds the policies ROUTE that an endpoint lacks.
func addRoutes(e *hcn.HostComputeEndpoint, want []netip.Prefix) error {
	have := map[string]bool{}
	for _, p := range e.Policies {
		var s hcn.SDNRoutePolicySetting
		if p.Type == hcn.SDNRoute && json.Unmarshal(p.Settings, &s) == nil {
			have[s.DestinationPrefix] = true
		}
	}
	var request hcn.PolicyEndpointRequest
	for _, prefix := range want {
		if !have[prefix.String()] {
			settings, _ := json.Marshal(hcn.SDNRoutePolicySetting{DestinationPrefix: prefix.String(), NeedEncap: true}) // cannot fail
			request.Policies = append(request.Policies, hcn.EndpointPolicy{Type: hcn.SDNRoute, Settings: settings})
		}
	}
	if len(request.Policies) == 0 {
		return nil
	}
	return gone(known("cannot add routes to endpoint "+e.Id, e.ApplyPolicy(hcn.RequestTypeAdd, request)))
}

// LocalAddresses are the addresses of this host's endpoints in the network with that ID, read by the first version of HNS' interface, which all
// versions of Windows have.
func LocalAddresses(network string) ([]netip.Addr, error) {
	list, err := hcsshim.HNSListEndpointRequest()
	if err != nil {
		return nil, known("cannot list endpoints", err)
	}
	var out []netip.Addr
	for _, e := range list {
		if addr, ok := netip.AddrFromSlice(e.IPAddress); ok && !e.IsRemoteEndpoint && strings.EqualFold(e.VirtualNetwork, network) {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}
