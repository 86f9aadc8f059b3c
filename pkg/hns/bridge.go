package hns

import (
	"fmt"
	"net/netip"
)

// Bridge is an l2bridge network for pods whose gateway is an endpoint of the host.
type Bridge struct {
	Name    string       // of the network and of the host's endpoint; Windows calls its adapter "vEthernet (NAME)"
	Subnet  netip.Prefix // IPv4
	Gateway netip.Addr   // the pods' gateway: an address of the host's endpoint
	// Router is the network's gateway in HNS. If it differs from Gateway, as in Microsoft's scripts and with
	// win-bridge, no machine has the address, and each pod's endpoint sets Gateway itself (MakeEndpoint). Invalid: it
	// is Gateway, and HNS leaves it to the host's endpoint (DoNotReserveGatewayAddress, schema 2.7).
	Router  netip.Addr
	Adapter string         // network adapter of the network; "": HNS chooses
	Keep    []netip.Prefix // destinations for which pods keep their address: exceptions of OutBoundNAT
	Routes  []netip.Prefix // destinations that pods reach through the host: policy ROUTE with NeedEncap, as in wincni's configuration
}

// Pods returns the PodNetwork on which we create the pods' endpoints.
func (b Bridge) Pods() PodNetwork {
	return PodNetwork{Name: b.Name, Subnet: b.Subnet, Gateway: b.Gateway, Keep: b.Keep, Routes: b.Routes}
}

// router returns the network's gateway in HNS.
func (b Bridge) router() netip.Addr {
	if b.Router.IsValid() {
		return b.Router
	}
	return b.Gateway
}

// fits says why a network with b's name differs from b; nil: it does not. Its subnets and their gateways are in the
// same order.
func (b Bridge) fits(kind string, subnets []netip.Prefix, gateways []netip.Addr) error {
	for i, subnet := range subnets {
		if kind == "L2Bridge" && subnet == b.Subnet && gateways[i] == b.router() {
			return nil
		}
	}
	return fmt.Errorf("%w: HNS has a network %q of type %s with %v and gateway %v that is not L2Bridge with %s and gateway %s; remove it (Get-HnsNetwork | ? Name -eq %[2]s | Remove-HnsNetwork) or drain this node",
		ErrDiffers, b.Name, kind, subnets, gateways, b.Subnet, b.router())
}
