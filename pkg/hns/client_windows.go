package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// client is this host's HNS by hcsshim. It is for one goroutine.
type client struct {
	modify    bool // load balancers can be changed in place; known after Network
	endpoints remembered[Endpoint]
	balancers remembered[LoadBalancer]
}

// NewClient returns the Client of this host's HNS, which need not run yet. Network is to be called before the others.
func NewClient() Client { return &client{} }

// down are the codes of a service that does not answer, missing those of an object that is not there.
var (
	down = []syscall.Errno{windows.ERROR_SERVICE_NOT_ACTIVE, windows.RPC_S_SERVER_UNAVAILABLE, windows.RPC_S_CALL_FAILED, windows.RPC_S_CALL_FAILED_DNE,
		windows.EPT_S_NOT_REGISTERED}
	missing = []syscall.Errno{windows.ERROR_NOT_FOUND, syscall.Errno(windows.HCN_E_NETWORK_NOT_FOUND), syscall.Errno(windows.HCN_E_ENDPOINT_NOT_FOUND)}
)

// known marks the errors that callers tell apart.
func known(what string, err error) error {
	is := func(code syscall.Errno) bool { return hcn.CheckErrorWithCode(err, hcn.ErrorCode(code)) }
	switch {
	case err == nil:
		return nil
	case windows.NewLazySystemDLL("vmcompute.dll").Load() != nil:
		return fmt.Errorf("%s: %w", what, ErrNoContainers)
	case slices.ContainsFunc(down, is):
		return fmt.Errorf("%s: %w: %w", what, ErrDown, err)
	case hcn.IsNotFoundError(err), slices.ContainsFunc(missing, is):
		return fmt.Errorf("%s: %w: %w", what, ErrNotFound, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// gone says that what should be removed is no more.
func gone(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// Network implements Client.
func (c *client) Network(_ context.Context, name string) (Network, error) {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return Network{}, fmt.Errorf("cannot read the network: %w", ErrOld)
	}
	found, err := hcn.GetNetworkByName(name)
	if err != nil {
		return Network{}, known("cannot read the network", err)
	}
	// 15.5 is the first HNS that changes load balancers in place; 15.4 says that it did, and did not (kubernetes/kubernetes#131466).
	globals, err := hcn.GetGlobals()
	if err != nil {
		return Network{}, fmt.Errorf("cannot read the version of HNS: %w: %w", ErrDown, err)
	}
	version := globals.Version
	c.modify = version.Major > 15 || version.Major == 15 && version.Minor >= 5
	n := Network{ID: found.Id, Name: found.Name, Overlay: found.Type == hcn.Overlay, Subnet: subnetOf(found)}
	n.Remote, err = remoteSubnets(found.Policies)
	return n, err
}

func remoteSubnets(policies []hcn.NetworkPolicy) ([]RemoteSubnet, error) {
	var out []RemoteSubnet
	for _, p := range policies {
		if p.Type != hcn.RemoteSubnetRoute {
			continue
		}
		var s hcn.RemoteSubnetRoutePolicySetting
		err := json.Unmarshal(p.Settings, &s)
		prefix, bad := netip.ParsePrefix(s.DestinationPrefix)
		provider, worse := netip.ParseAddr(s.ProviderAddress)
		mac, worst := hardware(s.DistributedRouterMacAddress)
		if err := errors.Join(err, bad, worse, worst); err != nil {
			return nil, fmt.Errorf("cannot read the remote subnet %s of the network: %w", p.Settings, err)
		}
		out = append(out, RemoteSubnet{prefix, provider, mac})
	}
	return out, nil
}

// endpointIDs and balancerIDs are prints of what there is: version 1 of the interface lists the objects of both in one call.
func endpointIDs() (string, error) {
	list, err := hcsshim.HNSListEndpointRequest()
	return ids(list, func(e hcsshim.HNSEndpoint) string { return e.Id }), err
}

func balancerIDs() (string, error) {
	list, err := hcsshim.HNSListPolicyListRequest()
	return ids(list, func(l hcsshim.PolicyList) string { return l.ID }), err
}

func ids[T any](list []T, id func(T) string) string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = id(list[i])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Endpoints implements Client.
func (c *client) Endpoints(context.Context) ([]Endpoint, error) {
	return c.endpoints.read(endpointIDs, listEndpoints)
}

func listEndpoints() ([]Endpoint, error) {
	found, err := hcn.ListEndpoints()
	if err != nil {
		return nil, known("cannot list", err)
	}
	out := make([]Endpoint, len(found))
	for i, e := range found {
		out[i] = Endpoint{ID: e.Id, Network: e.HostComputeNetwork, MAC: e.MacAddress, Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0,
			Provider: providerOf(e.Policies)}
		for _, config := range e.IpConfigurations {
			if addr, err := netip.ParseAddr(config.IpAddress); err == nil {
				out[i].Addrs = append(out[i].Addrs, addr)
			}
		}
	}
	return out, nil
}

// providerOf is the host that has an overlay's endpoint; the zero Addr where HNS says nothing of it.
func providerOf(policies []hcn.EndpointPolicy) (provider netip.Addr) {
	for _, p := range policies {
		var s hcn.ProviderAddressEndpointPolicySetting
		if p.Type == hcn.NetworkProviderAddress && json.Unmarshal(p.Settings, &s) == nil {
			provider, _ = netip.ParseAddr(s.ProviderAddress) // "" is the zero Addr
		}
	}
	return provider
}

// CreateEndpoint implements Client.
func (c *client) CreateEndpoint(_ context.Context, network Network, e Endpoint) (string, error) {
	c.endpoints.forget()
	want := &hcn.HostComputeEndpoint{MacAddress: e.MAC, SchemaVersion: hcn.V2SchemaVersion()}
	for _, addr := range e.Addrs {
		want.IpConfigurations = append(want.IpConfigurations, hcn.IpConfig{IpAddress: addr.String()})
	}
	if e.Remote {
		want.Flags = hcn.EndpointFlagsRemoteEndpoint
	}
	if e.Provider.IsValid() {
		settings, err := json.Marshal(hcn.ProviderAddressEndpointPolicySetting{ProviderAddress: e.Provider.String()})
		if err != nil {
			return "", err
		}
		want.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	made, err := (&hcn.HostComputeNetwork{Id: network.ID}).CreateEndpoint(want)
	if err != nil {
		return "", known("cannot create", err)
	}
	return made.Id, nil
}

// DeleteEndpoint implements Client.
func (c *client) DeleteEndpoint(_ context.Context, id string) error {
	c.endpoints.forget()
	return gone(known("cannot delete", (&hcn.HostComputeEndpoint{Id: id}).Delete()))
}

// flagExternalIP says that the VIP is no cluster IP. hcsshim has no name for it yet; upstream's winkernel proxy gives it.
const flagExternalIP hcn.LoadBalancerPortMappingFlags = 16

// LoadBalancers implements Client. Those of several ports are others'.
func (c *client) LoadBalancers(context.Context) ([]LoadBalancer, error) {
	return c.balancers.read(balancerIDs, listBalancers)
}

func listBalancers() ([]LoadBalancer, error) {
	found, err := hcn.ListLoadBalancers()
	if err != nil {
		return nil, known("cannot list", err)
	}
	var out []LoadBalancer
	for _, l := range found {
		if len(l.PortMappings) == 1 && len(l.FrontendVIPs) < 2 {
			out = append(out, read(l))
		}
	}
	return out, nil
}

func read(l hcn.HostComputeLoadBalancer) LoadBalancer {
	p := l.PortMappings[0]
	lb := LoadBalancer{ID: l.Id, Protocol: p.Protocol, ExternalPort: p.ExternalPort, InternalPort: p.InternalPort, Endpoints: l.HostComputeEndpoints,
		DSR: l.Flags&hcn.LoadBalancerFlagsDSR != 0, IPv6: l.Flags&hcn.LoadBalancerFlagsIPv6 != 0, ExternalIP: p.Flags&flagExternalIP != 0,
		LocalRouted: p.Flags&hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP != 0, ClientAffinity: p.DistributionType == hcn.LoadBalancerDistributionSourceIP}
	lb.SourceVIP, _ = netip.ParseAddr(l.SourceVIP) // "" is the zero Addr
	if len(l.FrontendVIPs) > 0 {
		lb.VIP, _ = netip.ParseAddr(l.FrontendVIPs[0])
	}
	return lb
}

// CreateLoadBalancer implements Client.
func (c *client) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (string, error) {
	c.balancers.forget()
	made, err := document(lb).Create()
	if err != nil {
		return "", known("cannot create", err)
	}
	return made.Id, nil
}

// ReplaceLoadBalancer implements Client.
func (c *client) ReplaceLoadBalancer(ctx context.Context, lb LoadBalancer) (string, error) {
	c.balancers.forget()
	if c.modify {
		if _, err := document(lb).Update(lb.ID); err == nil || !hcn.IsNotImplemented(err) {
			return lb.ID, known("cannot change", err)
		}
	}
	if err := c.DeleteLoadBalancer(ctx, lb.ID); err != nil {
		return "", err
	}
	return c.CreateLoadBalancer(ctx, lb)
}

// DeleteLoadBalancer implements Client.
func (c *client) DeleteLoadBalancer(_ context.Context, id string) error {
	c.balancers.forget()
	return gone(known("cannot delete", (&hcn.HostComputeLoadBalancer{Id: id}).Delete()))
}

func document(lb LoadBalancer) *hcn.HostComputeLoadBalancer {
	d := &hcn.HostComputeLoadBalancer{HostComputeEndpoints: lb.Endpoints, SchemaVersion: hcn.V2SchemaVersion(),
		Flags: bit(lb.DSR, hcn.LoadBalancerFlagsDSR) | bit(lb.IPv6, hcn.LoadBalancerFlagsIPv6),
		PortMappings: []hcn.LoadBalancerPortMapping{{Protocol: lb.Protocol, InternalPort: lb.InternalPort, ExternalPort: lb.ExternalPort,
			DistributionType: bit(lb.ClientAffinity, hcn.LoadBalancerDistributionSourceIP),
			Flags:            bit(lb.LocalRouted, hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP) | bit(lb.ExternalIP, flagExternalIP)}}}
	if lb.VIP.IsValid() {
		d.FrontendVIPs = []string{lb.VIP.String()}
	}
	if lb.SourceVIP.IsValid() {
		d.SourceVIP = lb.SourceVIP.String()
	}
	return d
}

// bit is flag where set.
func bit[T ~uint32](set bool, flag T) T {
	if set {
		return flag
	}
	return 0
}

// internal finds a network of the first version of HNS' interface, which all versions of Windows have.
func internal(name string) (found *hcsshim.HNSNetwork, err error) {
	list, err := hcsshim.HNSListNetworkRequest("GET", "", "")
	if err != nil {
		return nil, known("cannot list networks", err)
	}
	if i := slices.IndexFunc(list, func(n hcsshim.HNSNetwork) bool { return n.Name == name }); i >= 0 {
		return &list[i], nil
	}
	return nil, nil
}

// MakeInternal makes an internal switch, which connects this host to no network; HNS gives the host an adapter "vEthernet (NAME)" on it. One that
// is there is left as it is.
func MakeInternal(name string) error {
	found, err := internal(name)
	if found != nil || err != nil {
		return err
	}
	request, err := json.Marshal(hcsshim.HNSNetwork{Name: name, Type: "Internal"})
	if err != nil {
		return fmt.Errorf("cannot create network %q: %w", name, err)
	}
	_, err = hcsshim.HNSNetworkRequest("POST", "", string(request))
	return known(fmt.Sprintf("cannot create network %q", name), err)
}

// RemoveInternal removes what MakeInternal made.
func RemoveInternal(name string) error {
	found, err := internal(name)
	if found == nil || err != nil {
		return err
	}
	_, err = found.Delete()
	return gone(known(fmt.Sprintf("cannot delete network %q", name), err))
}
