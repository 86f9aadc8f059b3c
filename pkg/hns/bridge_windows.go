package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// MakeBridge creates b's network, without endpoints, and returns its ID. It adopts an existing network of that name
// with the right kind, range and gateway; otherwise the error wraps ErrDiffers.
func MakeBridge(b Bridge) (ID, error) {
	found, err := hcn.GetNetworkByName(b.Name)
	if err != nil {
		if err = known("cannot look for network "+b.Name, err); !errors.Is(err, ErrNotFound) {
			return ID{}, err
		}
		made, err := bridgeNetwork(b).Create()
		if err != nil {
			return ID{}, known("cannot create network "+b.Name, err)
		}
		return IDOf(made.Id), nil
	}
	var subnets []netip.Prefix
	var gateways []netip.Addr
	for _, ipam := range found.Ipams {
		for _, subnet := range ipam.Subnets {
			if p, err := netip.ParsePrefix(subnet.IpAddressPrefix); err == nil {
				subnets, gateways = append(subnets, p), append(gateways, gatewayOf(subnet))
			}
		}
	}
	return IDOf(found.Id), b.fits(string(found.Type), subnets, gateways)
}

// gatewayOf returns the next hop of a subnet's default route; invalid: none.
func gatewayOf(s hcn.Subnet) (gateway netip.Addr) {
	for _, r := range s.Routes {
		if r.DestinationPrefix == allIPv4 {
			gateway, _ = netip.ParseAddr(r.NextHop) // "" is the zero Addr
		}
	}
	return gateway
}

const allIPv4 = "0.0.0.0/0"

// bridgeNetwork leaves the pods' gateway to an endpoint: the network gets another gateway or, if HNS supports it, does
// not reserve the address.
func bridgeNetwork(b Bridge) *hcn.HostComputeNetwork {
	subnet := hcn.Subnet{IpAddressPrefix: b.Subnet.String(), Routes: []hcn.Route{{NextHop: b.router().String(), DestinationPrefix: allIPv4}}}
	if !b.Router.IsValid() {
		subnet.Flags = hcn.SubnetFlagsDoNotReserveGatewayAddress
	}
	n := &hcn.HostComputeNetwork{Name: b.Name, Type: hcn.L2Bridge, SchemaVersion: hcn.V2SchemaVersion(), Ipams: []hcn.Ipam{{Type: "Static", Subnets: []hcn.Subnet{subnet}}}}
	if b.Adapter != "" {
		settings, _ := json.Marshal(hcn.NetAdapterNameNetworkPolicySetting{NetworkAdapterName: b.Adapter}) // cannot fail: a string
		n.Policies = []hcn.NetworkPolicy{{Type: hcn.NetAdapterName, Settings: settings}}
	}
	return n
}

// RemoveBridge removes a bridge network and its endpoints. A missing network is not an error, and one of another kind
// stays.
func RemoveBridge(name string) error { return removeNetwork(name, hcn.L2Bridge) }

// removeNetwork removes a network if it is of that kind.
func removeNetwork(name string, kind hcn.NetworkType) error {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return fmt.Errorf("cannot look for network %s: %w", name, ErrOld)
	}
	found, err := hcn.GetNetworkByName(name)
	if err != nil {
		return gone(known("cannot look for network "+name, err))
	}
	if found.Type != kind {
		return nil
	}
	return gone(known("cannot delete network "+name, found.Delete()))
}

// JoinBridge creates the host's endpoint in b's network, attaches it to the host if attach is true, and adds the
// policies that the pods' endpoints lack.
func JoinBridge(b Bridge, attach bool) error {
	network, err := hcn.GetNetworkByName(b.Name)
	if err != nil {
		return known("cannot read network "+b.Name, err)
	}
	list, err := endpointsOf(network.Id)
	if err != nil {
		return known("cannot list the endpoints of "+b.Name, err)
	}
	own, errs := ID{}, []error{}
	for i := range list {
		switch e := &list[i]; {
		case e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0:
		case strings.EqualFold(e.Name, b.Name):
			own = IDOf(e.Id)
		default:
			errs = append(errs, completePolicies(e, b.Routes, b.Keep))
		}
	}
	return errors.Join(append(errs, joinHost(b, IDOf(network.Id), own, attach))...)
}

// joinHost creates the host's endpoint if own is zero, and attaches it: 1 is the host's network compartment. Without a
// gateway (0.0.0.0, as in Microsoft's start-kubelet.ps1) the host gets no default route to itself. Windows may have
// attached it already (flannel-io/flannel#1391).
func joinHost(b Bridge, network, own ID, attach bool) error {
	if own == (ID{}) {
		made, err := (&hcsshim.HNSEndpoint{Name: b.Name, VirtualNetwork: network.Upper(), IPAddress: b.Gateway.AsSlice(), GatewayAddress: "0.0.0.0"}).Create()
		if err != nil {
			return known("cannot create the host's endpoint in "+b.Name, err)
		}
		own, attach = IDOf(made.Id), true
	}
	if !attach {
		return nil
	}
	if err := (&hcsshim.HNSEndpoint{Id: own.String()}).HostAttach(1); err != nil && !has(err, syscall.Errno(windows.HCN_E_ENDPOINT_ALREADY_ATTACHED)) {
		return known("cannot attach the host to "+b.Name, err)
	}
	return nil
}

// LocalAddresses returns the addresses of this host's endpoints in a network. It uses the first version of the HNS API,
// which all versions of Windows have.
func LocalAddresses(network ID) ([]netip.Addr, error) {
	list, err := hcsshim.HNSListEndpointRequest()
	if err != nil {
		return nil, known("cannot list endpoints", err)
	}
	var out []netip.Addr
	for _, e := range list {
		if addr, ok := netip.AddrFromSlice(e.IPAddress); ok && !e.IsRemoteEndpoint && IDOf(e.VirtualNetwork) == network {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}
