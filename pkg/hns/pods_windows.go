package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// PodEndpoints lists the endpoints that MakeEndpoint created on a network; none if there is no such network. It looks
// up the network with the second HNS API, whose errors are precise, and lists endpoints with the first, which reports
// their containers.
func PodEndpoints(network string) ([]PodEndpoint, error) {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return nil, fmt.Errorf("cannot look for network %s: %w", network, ErrOld)
	}
	if _, err := hcn.GetNetworkByName(network); err != nil {
		return nil, gone(known("cannot look for network "+network, err))
	}
	list, err := hcsshim.HNSListEndpointRequest()
	if err != nil {
		return nil, known("cannot list endpoints", err)
	}
	var out []PodEndpoint
	for _, e := range list {
		addr, ok := netip.AddrFromSlice(e.IPAddress)
		if container := containerOf(e.Name, network); ok && container != "" && !e.IsRemoteEndpoint && e.VirtualNetworkName == network {
			out = append(out, PodEndpoint{ID: IDOf(e.Id), Container: container, Addr: addr.Unmap(), Attached: e.SharedContainers})
		}
	}
	return out, nil
}

// MakeEndpoint creates a pod's endpoint without connecting it. It sets all policies immediately through the first HNS
// API, as win-overlay and win-bridge do for Docker containers.
func MakeEndpoint(n PodNetwork, e PodEndpoint) (ID, error) {
	network, err := hcsshim.GetHNSNetworkByName(n.Name)
	if err != nil {
		return ID{}, known("cannot read network "+n.Name, err)
	}
	want := &hcsshim.HNSEndpoint{Name: EndpointName(e.Container, n.Name), VirtualNetwork: network.Id, IPAddress: e.Addr.AsSlice(),
		GatewayAddress: n.Gateway.String(), DNSServerList: strings.Join(e.DNS, ","), DNSSuffix: strings.Join(e.Searches, ",")}
	if n.Provider.IsValid() {
		want.MacAddress = PodMAC(e.Addr)
	}
	for _, p := range endpointPolicies(n) {
		text, _ := json.Marshal(p) // cannot fail
		want.Policies = append(want.Policies, text)
	}
	made, err := want.Create()
	if err != nil {
		return ID{}, known(fmt.Sprintf("cannot create endpoint %s", e.Addr), err)
	}
	return IDOf(made.Id), nil
}

// endpointPolicies returns the policies for the tunnel's source, for destinations without NAT, and for destinations
// that go through the gateway.
func endpointPolicies(n PodNetwork) (out []any) {
	if n.Provider.IsValid() {
		out = append(out, hcsshim.PaPolicy{Type: hcsshim.PA, PA: n.Provider.String()})
	}
	out = append(out, hcsshim.OutboundNatPolicy{Policy: hcsshim.Policy{Type: hcsshim.OutboundNat}, Exceptions: texts(n.Keep)})
	for _, p := range n.Routes {
		out = append(out, routePolicy{"ROUTE", p.String(), true})
	}
	return out
}

// routePolicy is the policy ROUTE of the first HNS API (Microsoft's wincni.go and the samples of win-overlay).
type routePolicy struct {
	Type, DestinationPrefix string
	NeedEncap               bool
}

func texts(list []netip.Prefix) (out []string) {
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

// AttachEndpoint connects a running container, named by its ID in the Host Compute Service, which the engine uses too.
// Attaching it twice is not an error.
func AttachEndpoint(id ID, container string) error {
	if err := hcsshim.HotAttachEndpoint(container, id.String()); err != nil {
		return known(fmt.Sprintf("cannot connect container %.12s", container), err)
	}
	return nil
}

// RemoveEndpoint disconnects the containers of a pod's endpoint, as PodEndpoints lists it, and removes it. A missing
// endpoint is not an error.
func RemoveEndpoint(e PodEndpoint) error {
	for _, container := range e.Attached {
		_ = hcsshim.HotDetachEndpoint(container, e.ID.String()) // the container may have ended
	}
	return gone(known("cannot delete endpoint "+e.ID.String(), (&hcn.HostComputeEndpoint{Id: e.ID.String()}).Delete()))
}
