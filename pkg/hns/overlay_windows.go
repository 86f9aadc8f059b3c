package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// MakeOverlay creates o's network, or adopts an existing one with its name, kind and range. It returns the hardware
// address of its distributed router, through which other hosts reach the pods. The error wraps ErrUnsettled while HNS
// is still creating the network.
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

// overlaysWork says why this HNS does not support overlays with other hosts; nil: it does.
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

// overlayNetwork does not survive a reboot (EnableNonPersistent), as in flannel: the adapter may be a different one by
// then, and the kubelet creates the network again before the first pod.
func overlayNetwork(o Overlay) *hcn.HostComputeNetwork {
	vsid, _ := json.Marshal(hcn.VsidPolicySetting{IsolationId: o.VNI}) // cannot fail, here and below: numbers and strings
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

// settled does not wait: it returns what HNS reports now, and adds the host's route to its own pods.
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

// routeHost adds the policy HostRoute, with which the host reaches the pods on it. According to flannel it needs
// Windows of the first half of 2019; according to hcsshim, HNS 9.2. If HNS refuses it, only the kubelet's network
// probes fail.
func routeHost(n *hcn.HostComputeNetwork) error {
	policy := hcn.PolicyNetworkRequest{Policies: []hcn.NetworkPolicy{{Type: hcn.HostRoute, Settings: json.RawMessage("{}")}}}
	if err := n.AddPolicy(policy); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostRoute, known("network "+n.Name, err))
	}
	return nil
}

// RemoveOverlay removes an overlay network and its endpoints. A missing network is not an error, and one of another
// kind stays.
func RemoveOverlay(name string) error { return removeNetwork(name, hcn.Overlay) }

// RemoteSubnets returns the remote subnets of a network. The error wraps ErrNotFound if the network is missing.
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

// ChangeSubnets removes and then adds remote subnets with one call for each, as flannel does, so that an error affects
// only one host. Removing a missing subnet is not an error.
func ChangeSubnets(network string, vni uint32, remove, add []RemoteSubnet) error {
	found, err := hcn.GetNetworkByName(network)
	if err != nil {
		return known("cannot read network "+network, err)
	}
	var errs []error
	for _, p := range found.Policies {
		one, err := remoteSubnets([]hcn.NetworkPolicy{p}) // unchanged, because HNS wants back what it wrote
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
