package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// MakeOverlay makes o's network, or adopts the one of its name that is of the kind and has the range, and returns the hardware address of its
// distributed router, by which other hosts reach the pods. The error wraps ErrUnsettled while HNS is not done with it.
func MakeOverlay(o Overlay) (router [6]byte, err error) {
	if err := overlaysWork(); err != nil {
		return router, fmt.Errorf("cannot create network %s: %w", o.Name, err)
	}
	found, err := hcn.GetNetworkByName(o.Name)
	if err != nil {
		if err = known("cannot look for network "+o.Name, err); !errors.Is(err, ErrNotFound) {
			return router, err
		}
		if found, err = overlayNetwork(o).Create(); err != nil {
			return router, known("cannot create network "+o.Name, err)
		}
	}
	if err := o.fits(string(found.Type), subnetOf(found)); err != nil {
		return router, err
	}
	return settled(o, found)
}

// overlaysWork says why this HNS has no overlays that know other hosts.
func overlaysWork() error {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return ErrOld
	}
	globals, err := hcn.GetGlobals()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	if v := globals.Version; v.Major < 9 || v.Major == 9 && v.Minor < 2 {
		return fmt.Errorf("%w; its version is %d.%d", ErrNoOverlay, v.Major, v.Minor)
	}
	return nil
}

// overlayNetwork is gone after a reboot (EnableNonPersistent), as flannel makes it: what HNS keeps of an adapter that may be another by then is
// of no use, and the kubelet makes it again before the first pod.
func overlayNetwork(o Overlay) *hcn.HostComputeNetwork {
	vsid, _ := json.Marshal(hcn.VsidPolicySetting{IsolationId: o.VNI}) // of numbers and texts, here and below: cannot fail
	policy, _ := json.Marshal(hcn.SubnetPolicy{Type: hcn.VSID, Settings: vsid})
	n := &hcn.HostComputeNetwork{Name: o.Name, Type: hcn.Overlay, Flags: hcn.EnableNonPersistent, SchemaVersion: hcn.V2SchemaVersion(),
		Ipams: []hcn.Ipam{{Type: "Static", Subnets: []hcn.Subnet{{IpAddressPrefix: o.Subnet.String(), Policies: []json.RawMessage{policy},
			Routes: []hcn.Route{{NextHop: o.Gateway.String(), DestinationPrefix: "0.0.0.0/0"}}}}}}}
	if o.Adapter != "" {
		settings, _ := json.Marshal(hcn.NetAdapterNameNetworkPolicySetting{NetworkAdapterName: o.Adapter})
		n.Policies = []hcn.NetworkPolicy{{Type: hcn.NetAdapterName, Settings: settings}}
	}
	return n
}

func subnetOf(n *hcn.HostComputeNetwork) netip.Prefix {
	for _, ipam := range n.Ipams {
		for _, subnet := range ipam.Subnets {
			if p, err := netip.ParsePrefix(subnet.IpAddressPrefix); err == nil {
				return p
			}
		}
	}
	return netip.Prefix{}
}

// settled waits for nothing: it says what HNS has of the network by now, and has it lead the host to its own pods.
func settled(o Overlay, n *hcn.HostComputeNetwork) (router [6]byte, err error) {
	var provider hcn.ProviderAddressNetworkPolicySetting
	var dr hcn.DrMacAddressNetworkPolicySetting
	routed := false
	for _, p := range n.Policies {
		switch p.Type {
		case hcn.ProviderAddress:
			err = errors.Join(err, json.Unmarshal(p.Settings, &provider))
		case hcn.DrMacAddress:
			err = errors.Join(err, json.Unmarshal(p.Settings, &dr))
		case hcn.HostRoute:
			routed = true
		}
	}
	if err == nil {
		router, err = o.settled(provider.ProviderAddress, dr.Address)
	}
	if err == nil && !routed {
		err = routeHost(n)
	}
	return router, err
}

// routeHost has the host reach the pods on it: policy HostRoute. flannel says that it takes a Windows of 2019's first half; hcsshim, that HNS 9.2
// has it. Where it is refused the node works but for probes of its kubelet.
func routeHost(n *hcn.HostComputeNetwork) error {
	policy := hcn.PolicyNetworkRequest{Policies: []hcn.NetworkPolicy{{Type: hcn.HostRoute, Settings: json.RawMessage("{}")}}}
	if err := n.AddPolicy(policy); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostRoute, known("network "+n.Name, err))
	}
	return nil
}

// RemoveOverlay removes a network of that name and kind; gone is no error. It takes the endpoints along.
func RemoveOverlay(name string) error {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return fmt.Errorf("cannot look for network %s: %w", name, ErrOld)
	}
	found, err := hcn.GetNetworkByName(name)
	if err != nil {
		return gone(known("cannot look for network "+name, err))
	}
	if found.Type != hcn.Overlay {
		return nil
	}
	return gone(known("cannot delete network "+name, found.Delete()))
}

// RemoteSubnets are those of the network of that name. The error wraps ErrNotFound where there is none.
func RemoteSubnets(network string) ([]RemoteSubnet, error) {
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return nil, fmt.Errorf("cannot read network %s: %w", network, ErrOld)
	}
	found, err := hcn.GetNetworkByName(network)
	if err != nil {
		return nil, known("cannot read network "+network, err)
	}
	return remoteSubnets(found.Policies)
}

// ChangeSubnets removes and then adds remote subnets, a call for each, as flannel does: what HNS refuses concerns one host. Removing what is gone is
// no error.
func ChangeSubnets(network string, vni uint32, remove, add []RemoteSubnet) error {
	found, err := hcn.GetNetworkByName(network)
	if err != nil {
		return known("cannot read network "+network, err)
	}
	var errs []error
	for _, p := range found.Policies {
		one, err := remoteSubnets([]hcn.NetworkPolicy{p}) // as HNS wrote it, which it wants back
		if err == nil && len(one) == 1 && slices.Contains(remove, one[0]) {
			err := found.RemovePolicy(hcn.PolicyNetworkRequest{Policies: []hcn.NetworkPolicy{p}})
			errs = append(errs, known(fmt.Sprintf("cannot remove the route to %s", one[0].Prefix), err))
		}
	}
	for _, s := range add {
		err := found.AddPolicy(hcn.PolicyNetworkRequest{Policies: []hcn.NetworkPolicy{subnetPolicy(s, vni)}})
		errs = append(errs, known(fmt.Sprintf("cannot add the route to %s via %s", s.Prefix, s.Provider), err))
	}
	return errors.Join(errs...)
}

func subnetPolicy(s RemoteSubnet, vni uint32) hcn.NetworkPolicy {
	settings, _ := json.Marshal(hcn.RemoteSubnetRoutePolicySetting{DestinationPrefix: s.Prefix.String(), IsolationId: uint16(vni),
		ProviderAddress: s.Provider.String(), DistributedRouterMacAddress: strings.ReplaceAll(net.HardwareAddr(s.MAC[:]).String(), ":", "-")})
	return hcn.NetworkPolicy{Type: hcn.RemoteSubnetRoute, Settings: settings}
}

// PodEndpoints lists the endpoints that MakeEndpoint made on the network of that name; where there is no such network there are none. The network
// is looked for by HNS' second interface, whose errors say what is wrong, the endpoints by the first, which says who is connected.
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
			out = append(out, PodEndpoint{ID: e.Id, Container: container, Addr: addr.Unmap(), Attached: e.SharedContainers})
		}
	}
	return out, nil
}

// MakeEndpoint makes a pod's endpoint, connected to nothing. All policies are there from the start, by the first interface, as win-overlay does
// for containers of Docker.
func MakeEndpoint(o Overlay, e PodEndpoint) (id string, err error) {
	network, err := hcsshim.GetHNSNetworkByName(o.Name)
	if err != nil {
		return "", known("cannot read network "+o.Name, err)
	}
	want := &hcsshim.HNSEndpoint{Name: EndpointName(e.Container, o.Name), VirtualNetwork: network.Id, IPAddress: e.Addr.AsSlice(), MacAddress: PodMAC(e.Addr),
		GatewayAddress: o.Gateway.String(), DNSServerList: strings.Join(e.DNS, ","), DNSSuffix: strings.Join(e.Searches, ",")}
	for _, p := range endpointPolicies(o) {
		text, _ := json.Marshal(p) // cannot fail
		want.Policies = append(want.Policies, text)
	}
	made, err := want.Create()
	if err != nil {
		return "", known(fmt.Sprintf("cannot create endpoint %s", e.Addr), err)
	}
	return made.Id, nil
}

// endpointPolicies: where the pod's packets are tunnelled from, which of them get the host's address, and that those to services stay.
func endpointPolicies(o Overlay) []any {
	out := []any{hcsshim.PaPolicy{Type: hcsshim.PA, PA: o.Provider.String()},
		hcsshim.OutboundNatPolicy{Policy: hcsshim.Policy{Type: hcsshim.OutboundNat}, Exceptions: texts(o.Keep)}}
	for _, p := range o.Services {
		out = append(out, routePolicy{"ROUTE", p.String(), true})
	}
	return out
}

// routePolicy is ROUTE of HNS' first interface (Microsoft's wincni.go and the samples of win-overlay).
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

// AttachEndpoint connects a running container by its ID of the Host Compute Service, which is the engine's. Attached already is no error.
func AttachEndpoint(id, container string) error {
	if err := hcsshim.HotAttachEndpoint(container, id); err != nil {
		return known(fmt.Sprintf("cannot connect container %.12s", container), err)
	}
	return nil
}

// RemoveEndpoint removes a pod's endpoint, as PodEndpoints lists it, and disconnects its containers before; gone is no error.
func RemoveEndpoint(e PodEndpoint) error {
	for _, container := range e.Attached {
		_ = hcsshim.HotDetachEndpoint(container, e.ID) // it may have ended
	}
	return gone(known("cannot delete endpoint "+e.ID, (&hcn.HostComputeEndpoint{Id: e.ID}).Delete()))
}
