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

// client implements Client for this host with hcsshim. Use it from one goroutine.
type client struct {
	modify    bool // whether HNS can change load balancers in place; set by Network
	endpoints remembered[Endpoint]
	balancers remembered[LoadBalancer]
}

// NewClient returns the Client of this host's HNS, which need not run yet. Call Network before the other methods.
func NewClient() Client { return &client{} }

// down lists the error codes of a service that does not respond; missing those of an object that does not exist.
var (
	down = []syscall.Errno{windows.ERROR_SERVICE_NOT_ACTIVE, windows.RPC_S_SERVER_UNAVAILABLE, windows.RPC_S_CALL_FAILED, windows.RPC_S_CALL_FAILED_DNE,
		windows.EPT_S_NOT_REGISTERED}
	missing = []syscall.Errno{windows.ERROR_NOT_FOUND, syscall.Errno(windows.HCN_E_NETWORK_NOT_FOUND), syscall.Errno(windows.HCN_E_ENDPOINT_NOT_FOUND)}
)

// known wraps the errors that callers distinguish.
func known(what string, err error) error {
	is := func(code syscall.Errno) bool { return has(err, code) }
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

// has reports whether an error of either HNS API has that code. For the first API, hcsshim keeps the code in an
// internal error that shows it only in its text, in brackets, and identically in all languages of Windows.
func has(err error, code syscall.Errno) bool {
	return hcn.CheckErrorWithCode(err, hcn.ErrorCode(code)) || err != nil && strings.Contains(err.Error(), fmt.Sprintf("(0x%x)", uint32(code)))
}

// gone drops the error if the object to remove does not exist.
func gone(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// listed reads a list whose members hcsshim opens one by one. If a member is removed meanwhile, the whole list fails
// and is read again.
func listed[T any](read func() ([]T, error)) (list []T, err error) {
	for range 5 {
		if list, err = read(); !errors.Is(known("", err), ErrNotFound) {
			break
		}
	}
	return list, err
}

func endpointsOf(network string) ([]hcn.HostComputeEndpoint, error) {
	return listed(func() ([]hcn.HostComputeEndpoint, error) { return hcn.ListEndpointsOfNetwork(network) })
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
	// 15.5 is the first HNS that changes load balancers in place; 15.4 claimed to, but did not
	// (kubernetes/kubernetes#131466).
	globals, err := hcn.GetGlobals()
	if err != nil {
		return Network{}, fmt.Errorf("cannot read the version of HNS: %w: %w", ErrDown, err)
	}
	version := globals.Version
	c.modify = version.Major > 15 || version.Major == 15 && version.Minor >= 5
	n := Network{ID: IDOf(found.Id), Name: found.Name, Overlay: found.Type == hcn.Overlay, Subnet: subnetOf(found)}
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

// endpointIDs and balancerIDs return a fingerprint of the existing objects: version 1 of the API lists each kind in one
// call.
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
	found, err := listed(hcn.ListEndpoints)
	if err != nil {
		return nil, known("cannot list", err)
	}
	out := make([]Endpoint, len(found))
	for i, e := range found {
		out[i] = Endpoint{ID: IDOf(e.Id), Network: IDOf(e.HostComputeNetwork), MAC: e.MacAddress, Remote: e.Flags&hcn.EndpointFlagsRemoteEndpoint != 0,
			Provider: providerOf(e.Policies)}
		for _, config := range e.IpConfigurations {
			if addr, err := netip.ParseAddr(config.IpAddress); err == nil {
				out[i].Addrs = append(out[i].Addrs, addr)
			}
		}
	}
	return out, nil
}

// providerOf returns the host of an overlay's endpoint; the zero Addr if HNS does not report it.
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
func (c *client) CreateEndpoint(_ context.Context, network Network, e Endpoint) (ID, error) {
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
			return ID{}, err
		}
		want.Policies = []hcn.EndpointPolicy{{Type: hcn.NetworkProviderAddress, Settings: settings}}
	}
	made, err := (&hcn.HostComputeNetwork{Id: network.ID.String()}).CreateEndpoint(want)
	if err != nil {
		return ID{}, known("cannot create", err)
	}
	return IDOf(made.Id), nil
}

// DeleteEndpoint implements Client.
func (c *client) DeleteEndpoint(_ context.Context, id ID) error {
	c.endpoints.forget()
	return gone(known("cannot delete", (&hcn.HostComputeEndpoint{Id: id.String()}).Delete()))
}

// flagExternalIP marks a VIP that is not a cluster IP. hcsshim has no name for it yet; upstream's winkernel proxy sets
// it.
const flagExternalIP hcn.LoadBalancerPortMappingFlags = 16

// LoadBalancers implements Client. It skips load balancers with several ports, which are not ours.
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
	lb := LoadBalancer{ID: IDOf(l.Id), Protocol: p.Protocol, ExternalPort: p.ExternalPort, InternalPort: p.InternalPort, Endpoints: IDsOf(l.HostComputeEndpoints),
		DSR: l.Flags&hcn.LoadBalancerFlagsDSR != 0, IPv6: l.Flags&hcn.LoadBalancerFlagsIPv6 != 0, ExternalIP: p.Flags&flagExternalIP != 0,
		LocalRouted: p.Flags&hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP != 0, ClientAffinity: p.DistributionType == hcn.LoadBalancerDistributionSourceIP}
	lb.SourceVIP, _ = netip.ParseAddr(l.SourceVIP) // "" is the zero Addr
	if len(l.FrontendVIPs) > 0 {
		lb.VIP, _ = netip.ParseAddr(l.FrontendVIPs[0])
	}
	return lb
}

// CreateLoadBalancer implements Client.
func (c *client) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (ID, error) {
	c.balancers.forget()
	made, err := document(lb).Create()
	if err != nil {
		return ID{}, known("cannot create", err)
	}
	return IDOf(made.Id), nil
}

// ReplaceLoadBalancer implements Client.
func (c *client) ReplaceLoadBalancer(ctx context.Context, lb LoadBalancer) (ID, error) {
	c.balancers.forget()
	if c.modify {
		if _, err := document(lb).Update(lb.ID.String()); err == nil || !hcn.IsNotImplemented(err) {
			return lb.ID, known("cannot change", err)
		}
	}
	if err := c.DeleteLoadBalancer(ctx, lb.ID); err != nil {
		return ID{}, err
	}
	return c.CreateLoadBalancer(ctx, lb)
}

// DeleteLoadBalancer implements Client.
func (c *client) DeleteLoadBalancer(_ context.Context, id ID) error {
	c.balancers.forget()
	return gone(known("cannot delete", (&hcn.HostComputeLoadBalancer{Id: id.String()}).Delete()))
}

func document(lb LoadBalancer) *hcn.HostComputeLoadBalancer {
	d := &hcn.HostComputeLoadBalancer{HostComputeEndpoints: guids(lb.Endpoints), SchemaVersion: hcn.V2SchemaVersion(),
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

// bit returns flag if set.
func bit[T ~uint32](set bool, flag T) T {
	if set {
		return flag
	}
	return 0
}

// internal finds a network with the first version of the HNS API, which all versions of Windows have.
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

// MakeInternal creates an internal switch, which connects this host to no network; HNS gives the host an adapter
// "vEthernet (NAME)" on it. An existing network of that name stays unchanged.
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

// RemoveInternal removes a network that MakeInternal created.
func RemoveInternal(name string) error {
	found, err := internal(name)
	if found == nil || err != nil {
		return err
	}
	_, err = found.Delete()
	return gone(known(fmt.Sprintf("cannot delete network %q", name), err))
}
