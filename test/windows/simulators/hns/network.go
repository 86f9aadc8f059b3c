package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// networkTypes are HNS's network types and their requirements. "hcn-json-document-schemas" and hcsshim's hcnnetwork.go name them; HNS v1
// knows Internal (Docker's "internal" driver).
var networkTypes = map[string]struct {
	external bool // uses a network adapter of the host
	remote   bool // may have remote endpoints
}{
	"NAT": {}, "ICS": {}, "Internal": {}, "Private": {},
	"Transparent": {external: true},
	"L2Bridge":    {external: true, remote: true},
	"L2Tunnel":    {external: true, remote: true},
	"Overlay":     {external: true, remote: true},
}

// networkFlags: 1 EnableDnsProxy, 2 EnableDhcpServer, 8 EnableNonPersistent, 1024 DisableHostPort, 8192 EnableIov.
const (
	networkFlags  = 1 | 2 | 8 | 1024 | 8192
	nonPersistent = 8
)

func (h *HNS) createNetwork(n *Network) error {
	if n.Name == "" {
		return fail(InvalidNetwork, "Name is empty")
	}
	kind, ok := networkTypes[n.Type]
	if !ok {
		return fail(InvalidNetworkType, "Type is %q", n.Type)
	}
	if n.Flags&^networkFlags != 0 {
		return unknown(InvalidParameter, "Flags are %d", n.Flags)
	}
	for _, other := range h.networks {
		switch {
		case strings.EqualFold(other.Name, n.Name): // microsoft/hcsshim#850
			return fail(NetworkExists, "network %q is there", n.Name)
		case h.version == nil && n.Type == "NAT" && other.Type == "NAT": // docker/for-win#726: one NAT network on Server 2016
			return fail(ObjectExists, "NAT network %q is there", other.Name)
		}
	}
	if err := h.v().checkPolicies("network", n.Policies); err != nil {
		return err
	}
	if n.Type == "NAT" {
		h.chooseSubnet(n)
	}
	if err := h.checkSubnets(n); err != nil {
		return err
	}
	if err := n.checkNetworkPolicies(n.Policies); err != nil {
		return err
	}
	if kind.external {
		if err := h.bind(n); err != nil {
			return err
		}
	}
	if len(n.MacPool.Ranges) == 0 {
		index := len(h.networks)
		n.MacPool.Ranges = []MacRange{{fmt.Sprintf("00-15-5D-%02X-00-00", index), fmt.Sprintf("00-15-5D-%02X-0F-FF", index)}}
	}
	if h.order != nil {
		n.unsettled = 2 // the creator's own answer counts as one read
	}
	if n.Type == "Overlay" && n.unsettled == 0 {
		h.distribute(n)
	}
	if err := h.identify(&n.ID, "network"); err != nil {
		return err
	}
	h.networks = append(h.networks, n)
	h.adapterChanged(n, true)
	h.notify(notifyNetworkCreate)
	return nil
}

// settle runs at each read of a network. HNS completes a new network some time later: flannel waits for ManagementIP and for the address of its
// tunnel endpoint (hostgw_windows.go, vxlan device_windows.go).
func (h *HNS) settle(n *Network) {
	if n.unsettled == 0 {
		return
	}
	if n.unsettled--; n.unsettled == 0 && n.Type == "Overlay" {
		h.distribute(n)
	}
}

// managementIP returns the host's own address on an external network, or "" if there is none, or none yet.
func (h *HNS) managementIP(n *Network) string {
	if !networkTypes[n.Type].external || n.unsettled > 0 || h.address == nil || !h.address().IsValid() {
		return ""
	}
	return h.address().String()
}

// distribute gives an overlay network its tunnel endpoint: the host's address (v1's ManagementIP) and the MAC address of its distributed router.
// Source: flannel's pkg/backend/vxlan device_windows.go getManagementIP and vxlan_windows.go, which read both from the network's policies and wait
// for the former.
func (h *HNS) distribute(n *Network) {
	if h.address == nil || !h.address().IsValid() {
		return
	}
	index := slices.Index(h.networks, n)
	if index < 0 {
		index = len(h.networks)
	}
	n.Policies = append(n.Policies, policy("ProviderAddress", providerAddressPolicy{h.address().String()}),
		policy("DrMacAddress", map[string]string{"Address": fmt.Sprintf("00-15-5D-%02X-FF-FF", index)}))
}

// chooseSubnet chooses the range of a NAT network if the caller leaves it to HNS with the range 0.0.0.0/0 and no gateway. Docker does so for its
// network nat (moby/libnetwork#2429, which reads the choice back). HNS uses a /20 of 172.16.0.0/12 (docker/for-win#1104, #1126); which one is
// unknown: here the first unused one.
func (h *HNS) chooseSubnet(n *Network) {
	for i := range n.Ipams {
		for j := range n.Ipams[i].Subnets {
			s := &n.Ipams[i].Subnets[j]
			if s.IpAddressPrefix != "0.0.0.0/0" || len(s.Routes) > 0 {
				continue
			}
			for block := range 1 << 8 {
				choice := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + block>>4), byte(block << 4), 0}), 20)
				if !slices.ContainsFunc(h.networks, func(o *Network) bool { return o.overlaps(choice) }) {
					s.IpAddressPrefix = choice.String()
					s.Routes = []Route{{NextHop: choice.Addr().Next().String(), DestinationPrefix: "0.0.0.0/0"}}
					break
				}
			}
		}
	}
}

// overlaps reports whether one of the network's ranges overlaps another prefix.
func (n *Network) overlaps(other netip.Prefix) bool {
	return slices.ContainsFunc(n.subnets(), func(s Subnet) bool {
		prefix, err := netip.ParsePrefix(s.IpAddressPrefix)
		return err == nil && prefix.Overlaps(other)
	})
}

// checkSubnets requires a gateway for each range (otherwise hcsshim's Create refuses it, and HNS answers E_INVALIDARG), and a VSID in overlay
// networks.
func (h *HNS) checkSubnets(n *Network) error {
	for i := range n.Ipams {
		ipam := &n.Ipams[i]
		if ipam.Type != "" && !strings.EqualFold(ipam.Type, "Static") && !strings.EqualFold(ipam.Type, "DHCP") {
			return fail(InvalidParameter, "Ipams[%d].Type is %q", i, ipam.Type)
		}
		for _, s := range ipam.Subnets {
			if s.IpAddressPrefix == "" {
				continue
			}
			prefix, err := netip.ParsePrefix(s.IpAddressPrefix)
			if err != nil || prefix != prefix.Masked() {
				return fail(InvalidIP, "IpAddressPrefix is %q", s.IpAddressPrefix)
			}
			if prefix.Addr().Is6() && !h.v().supports("IPv6") && n.Type != "NAT" {
				return fail(Unsupported, "HNS %s has no IPv6 in %s networks", h.v(), n.Type)
			}
			gateway, ok := s.gateway()
			if !ok {
				return fail(InvalidParameter, "subnet %s has no default route", prefix)
			}
			if !prefix.Contains(gateway) {
				return fail(InvalidIP, "gateway %s is not in %s", gateway, prefix)
			}
			if s.Flags&^1 != 0 {
				return unknown(InvalidParameter, "subnet Flags are %d", s.Flags)
			}
			if err := h.v().checkPolicies("subnet", s.Policies); err != nil {
				return err
			}
			vsid, ok := find[isolationPolicy](s.Policies, "VSID")
			if n.Type == "Overlay" && (!ok || vsid.IsolationId < minVSID || vsid.IsolationId > 1<<24-1) {
				return fail(InvalidPolicy, "subnet %s of an overlay network has VSID %d, want %d to %d", prefix, vsid.IsolationId, minVSID, 1<<24-1)
			}
		}
	}
	return nil
}

// gateway returns the next hop of a subnet's default route.
func (s *Subnet) gateway() (netip.Addr, bool) {
	for _, r := range s.Routes {
		if r.DestinationPrefix == "0.0.0.0/0" || r.DestinationPrefix == "::/0" {
			addr, err := netip.ParseAddr(r.NextHop)
			return addr, err == nil
		}
	}
	return netip.Addr{}, false
}

// checkNetworkPolicies allows remote subnets, host routes and the VXLAN port only on overlay networks (hcsshim hcnglobals.go).
func (n *Network) checkNetworkPolicies(list []Policy) error {
	for _, p := range list {
		if slices.Contains([]string{"RemoteSubnetRoute", "HostRoute", "VxlanPort"}, p.Type) && n.Type != "Overlay" {
			return fail(InvalidPolicyType, "policy %s on a network of type %s", p.Type, n.Type)
		}
	}
	return nil
}

// bind assigns an adapter to an external network: the named one, or the first free one. An adapter has one virtual
// switch, which networks of one type may share (microsoft/SDN#300: no second type on an adapter, "An adapter was not
// found").
func (h *HNS) bind(n *Network) error {
	policy, named := find[adapterPolicy](n.Policies, "NetAdapterName")
	want := policy.NetworkAdapterName
	for _, adapter := range h.adapters {
		if named && adapter != want {
			continue
		}
		if i := slices.IndexFunc(h.networks, func(o *Network) bool { return h.bound[o.ID] == adapter && o.Type != n.Type }); i >= 0 {
			if !named {
				continue
			}
			return fail(AdapterNotFound, "adapter %q carries the %s network %q", adapter, h.networks[i].Type, h.networks[i].Name)
		}
		h.binding = adapter
		return nil
	}
	return fail(AdapterNotFound, "there is no free adapter %q among %q", want, h.adapters)
}

// adapterChanged reports the adapter that a network adds or removes to the host's IP stack. Server 2016 has other names: "HNS
// Internal NIC" (docker/for-win#750) and, for a transparent network, "HNSTransparent" (docker/for-win#294).
func (h *HNS) adapterChanged(n *Network, added bool) {
	name := "vEthernet (" + n.Name + ")"
	if h.version == nil && n.Type == "NAT" {
		name = "vEthernet (HNS Internal NIC)"
	}
	if networkTypes[n.Type].external {
		if added {
			h.bound[n.ID], h.binding = h.binding, ""
		}
		adapter := h.bound[n.ID]
		if !added {
			delete(h.bound, n.ID)
		}
		for _, other := range h.networks {
			if other.ID != n.ID && h.bound[other.ID] == adapter {
				return // the switch and its adapter are shared
			}
		}
		name = "vEthernet (" + adapter + ")"
		if h.version == nil && n.Type == "Transparent" {
			name = "vEthernet (HNSTransparent)"
		}
	}
	if h.onAdapter != nil && n.Type != "Private" {
		h.onAdapter(name, added, n.hostAddresses())
	}
}

// hostAddresses returns the host's own addresses in a network: the gateways of NAT, ICS and internal networks.
func (n *Network) hostAddresses() []netip.Prefix {
	var out []netip.Prefix
	if networkTypes[n.Type].external {
		return nil
	}
	for _, s := range n.subnets() {
		if gateway, ok := s.gateway(); ok {
			prefix, err := netip.ParsePrefix(s.IpAddressPrefix)
			if err == nil {
				out = append(out, netip.PrefixFrom(gateway, prefix.Bits()))
			}
		}
	}
	return out
}

func (n *Network) subnets() []Subnet {
	var out []Subnet
	for _, ipam := range n.Ipams {
		out = append(out, ipam.Subnets...)
	}
	return out
}

// deleteNetwork also deletes the network's endpoints. Load balancers on them remain and cannot be deleted any more
// (moby/libnetwork#2620: "The network was not found").
func (h *HNS) deleteNetwork(id string) error {
	n, err := h.network(id)
	if err != nil {
		return err
	}
	for _, e := range slices.Clone(h.endpoints) {
		if e.HostComputeNetwork == n.ID {
			h.dropEndpoint(e)
		}
	}
	h.networks = slices.DeleteFunc(h.networks, func(o *Network) bool { return o == n })
	h.adapterChanged(n, false)
	h.notify(notifyNetworkDelete)
	return nil
}

func (h *HNS) modifyNetwork(n *Network, m modification) error {
	switch m.ResourceType {
	case "Policy":
		var change struct{ Policies []Policy }
		if err := decode(string(m.Settings), &change); err != nil {
			return err
		}
		if err := h.v().checkPolicies("network", change.Policies); err != nil {
			return err
		}
		if err := n.checkNetworkPolicies(change.Policies); err != nil {
			return err
		}
		next, err := modify(n.Policies, m.RequestType, change.Policies)
		if err != nil {
			return err
		}
		n.Policies = next
		return nil
	case "DNS":
		if m.RequestType != "Update" {
			return unknown(Unsupported, "RequestType %q of DNS is not simulated", m.RequestType)
		}
		return decode(string(m.Settings), &n.Dns)
	}
	return unknown(Unsupported, "ResourceType %q of a network is not simulated", m.ResourceType)
}
