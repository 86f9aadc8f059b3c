package hns

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// endpointFlags: 1 remote endpoint (hcsshim), 2 DisableInterComputeCommunication (Microsoft's schema).
const endpointFlags = 1 | 2

var macPattern = regexp.MustCompile(`^[0-9A-Fa-f]{2}([-:][0-9A-Fa-f]{2}){5}$`)

func validMAC(text string) bool { return macPattern.MatchString(text) }

func (h *HNS) createEndpoint(n *Network, e *Endpoint) error {
	if e.HostComputeNetwork != "" && !strings.EqualFold(e.HostComputeNetwork, n.ID) {
		return fail(InvalidParameter, "HostComputeNetwork is %s, the handle is of %s", e.HostComputeNetwork, n.ID)
	}
	e.HostComputeNetwork = n.ID
	if e.HostComputeNamespace != "" { // hcsshim hcnendpoint.go: read only
		return fail(InvalidParameter, "HostComputeNamespace is read only")
	}
	if e.Flags&^endpointFlags != 0 {
		return unknown(InvalidParameter, "Flags are %d", e.Flags)
	}
	if e.MacAddress != "" && !validMAC(e.MacAddress) {
		return fail(InvalidParameter, "MacAddress is %q", e.MacAddress)
	}
	if err := h.v().checkPolicies("endpoint", e.Policies); err != nil {
		return err
	}
	if err := h.checkMappings(n, e); err != nil {
		return err
	}
	if e.remote() {
		if err := h.checkRemote(n, e); err != nil {
			return err
		}
	}
	if err := h.assign(n, e); err != nil {
		return err
	}
	if err := n.lend(e); err != nil {
		return err
	}
	if e.MacAddress == "" {
		e.MacAddress = h.freeMAC(n)
	}
	if err := h.identify(&e.ID, "endpoint"); err != nil {
		return err
	}
	h.endpoints = append(h.endpoints, e)
	return nil
}

// checkMappings allows each host port only once per network (hcsshim hcn/hcnerrors_test.go TestEndpointAlreadyExistsError:
// IsPortAlreadyExistsError).
func (h *HNS) checkMappings(n *Network, e *Endpoint) error {
	for _, other := range h.endpoints {
		for _, have := range mappings(other) {
			for _, want := range mappings(e) {
				if other.HostComputeNetwork == n.ID && have.Protocol == want.Protocol && have.ExternalPort == want.ExternalPort && have.VIP == want.VIP && want.ExternalPort != 0 {
					return fail(PortExists, "port %d of the host is mapped to endpoint %s", want.ExternalPort, other.ID)
				}
			}
		}
	}
	return nil
}

func mappings(e *Endpoint) (out []portMappingPolicy) {
	for _, p := range e.Policies {
		if s, ok := find[portMappingPolicy]([]Policy{p}, "PortMapping"); ok {
			out = append(out, s)
		}
	}
	return out
}

// checkRemote allows remote endpoints only in bridge and overlay networks. An overlay must also know the endpoint's host (upstream's
// proxier.go, syncProxyRules, uses the own node's address for endpoints outside the cluster).
func (h *HNS) checkRemote(n *Network, e *Endpoint) error {
	if !networkTypes[n.Type].remote {
		return fail(Unsupported, "a remote endpoint in a network of type %s", n.Type)
	}
	if len(e.IpConfigurations) == 0 {
		return fail(InvalidParameter, "a remote endpoint without address")
	}
	pa, _ := find[providerAddressPolicy](e.Policies, "ProviderAddress")
	if n.Type == "Overlay" && pa.ProviderAddress == "" {
		return fail(InvalidPolicy, "a remote endpoint of an overlay network without provider address")
	}
	return nil
}

// assign checks the addresses of an endpoint, or allocates one from the first subnet.
func (h *HNS) assign(n *Network, e *Endpoint) error {
	if len(e.IpConfigurations) == 0 {
		return h.allocate(n, e)
	}
	families := map[bool]bool{}
	for i := range e.IpConfigurations {
		config := &e.IpConfigurations[i]
		addr, err := netip.ParseAddr(config.IpAddress)
		if err != nil {
			return fail(InvalidIP, "IpAddress is %q", config.IpAddress)
		}
		if families[addr.Is6()] {
			return fail(InvalidParameter, "two addresses of one family")
		}
		families[addr.Is6()] = true
		if err := h.checkFree(n, e, addr); err != nil {
			return err
		}
		subnet, ok := n.subnetOf(addr)
		if !ok && !e.remote() && len(n.subnets()) > 0 {
			return fail(AddressReserved, "%s is in no subnet of %q", addr, n.Name) // kubernetes/kubernetes#100962, sig-windows-tools#71
		}
		if !ok {
			continue
		}
		prefix := netip.MustParsePrefix(subnet.IpAddressPrefix)
		gateway, _ := subnet.gateway()
		if !e.remote() && (addr == prefix.Addr() || addr == gateway && subnet.Flags&1 == 0) {
			return fail(AddressReserved, "%s is the network's or the gateway's address", addr)
		}
		if config.PrefixLength == 0 {
			config.PrefixLength = uint8(prefix.Bits())
		}
	}
	return nil
}

// lend gives a local endpoint without a gateway that of its subnet. Source: moby libnetwork/drivers/windows/windows.go CreateEndpoint, which sets
// none and uses the one in HNS's answer. 0.0.0.0 means no gateway (microsoft/SDN, start-kubelet.ps1: the host's endpoint).
func (n *Network) lend(e *Endpoint) error {
	for _, r := range e.Routes {
		if _, err := netip.ParseAddr(r.NextHop); err != nil {
			return fail(InvalidIP, "NextHop is %q", r.NextHop)
		}
	}
	for _, config := range e.IpConfigurations {
		addr, err := netip.ParseAddr(config.IpAddress)
		if err != nil || e.remote() {
			continue
		}
		all := "0.0.0.0/0"
		if addr.Is6() {
			all = "::/0"
		}
		subnet, inside := n.subnetOf(addr)
		if gateway, ok := subnet.gateway(); inside && ok && e.gateway(all) == "" {
			e.Routes = append(e.Routes, Route{NextHop: gateway.String(), DestinationPrefix: all})
		}
	}
	return nil
}

// gateway returns the next hop of an endpoint's default route, or "" if it has none.
func (e *Endpoint) gateway(all string) string {
	for _, r := range e.Routes {
		if r.DestinationPrefix == all {
			return r.NextHop
		}
	}
	return ""
}

// checkFree refuses an address that is already used in the network (kubernetes/kubernetes#74766, 0x1392). HNS of Server 2019 and 2022 allows
// a remote endpoint with a local one's address (upstream winkernel/hns.go, getAllEndpointsByNetwork), but not the reverse
// (kubernetes/kubernetes#130963).
func (h *HNS) checkFree(n *Network, e *Endpoint, addr netip.Addr) error {
	for _, other := range h.endpoints {
		if other.HostComputeNetwork != n.ID || !other.has(addr) {
			continue
		}
		if e.remote() && !other.remote() && !h.v().atLeast(15, 0) {
			continue
		}
		return fail(ObjectExists, "%s is there", addr)
	}
	return nil
}

func (e *Endpoint) has(addr netip.Addr) bool {
	return slices.ContainsFunc(e.IpConfigurations, func(c IPConfig) bool {
		have, err := netip.ParseAddr(c.IpAddress)
		return err == nil && have == addr
	})
}

func (n *Network) subnetOf(addr netip.Addr) (Subnet, bool) {
	for _, s := range n.subnets() {
		if prefix, err := netip.ParsePrefix(s.IpAddressPrefix); err == nil && prefix.Contains(addr) {
			return s, true
		}
	}
	return Subnet{}, false
}

// allocate assigns a local endpoint the lowest free address of the first subnet. It skips the network address, the gateway and .1, which
// HNS reserves (microsoft/SDN, Kubernetes/windows: pods' gateway on an l2bridge network is .2). Networks without subnets (DHCP, Private)
// assign none.
func (h *HNS) allocate(n *Network, e *Endpoint) error {
	for _, s := range n.subnets() {
		prefix, err := netip.ParsePrefix(s.IpAddressPrefix)
		if err != nil {
			continue
		}
		gateway, _ := s.gateway()
		last := broadcast(prefix)
		for addr := prefix.Addr().Next().Next(); prefix.Contains(addr) && addr != last; addr = addr.Next() {
			if addr != gateway && h.checkFree(n, e, addr) == nil {
				e.IpConfigurations = []IPConfig{{addr.String(), uint8(prefix.Bits())}}
				return nil
			}
		}
		return fail(AddressReserved, "subnet %s has no free address", prefix)
	}
	return nil
}

// broadcast returns the highest address of an IPv4 prefix; IPv6 has none.
func broadcast(prefix netip.Prefix) netip.Addr {
	if !prefix.Addr().Is4() {
		return netip.Addr{}
	}
	a := prefix.Addr().As4()
	for bit := prefix.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(a)
}

// freeMAC returns the lowest free address of the network's pool.
func (h *HNS) freeMAC(n *Network) string {
	start := strings.ReplaceAll(n.MacPool.Ranges[0].StartMacAddress, ":", "-")
	head := start[:strings.LastIndexByte(start, '-')-3]
	for i := 1; ; i++ {
		mac := fmt.Sprintf("%s-%02X-%02X", head, i>>8, i&0xff)
		if !slices.ContainsFunc(h.endpoints, func(e *Endpoint) bool { return strings.EqualFold(e.MacAddress, mac) }) {
			return mac
		}
	}
}

// dropEndpoint removes an endpoint, also from its namespace. Load balancers keep its ID: HNS lets callers delete an endpoint in use,
// which breaks the service (kubernetes/kubernetes#76316).
func (h *HNS) dropEndpoint(e *Endpoint) {
	for _, ns := range h.namespaces {
		ns.Resources = slices.DeleteFunc(ns.Resources, func(r Resource) bool { return r.Type == "Endpoint" && strings.EqualFold(r.Data.ID, e.ID) })
	}
	h.endpoints = slices.DeleteFunc(h.endpoints, func(o *Endpoint) bool { return o == e })
	h.hostAttached(e, false)
}

// hostAttached reports the adapter of an endpoint in the host's own compartment to the host's IP stack.
func (h *HNS) hostAttached(e *Endpoint, added bool) {
	i := slices.Index(e.attached, "host")
	if added == (i >= 0) {
		return
	}
	if added {
		e.attached = append(e.attached, "host")
	} else {
		e.attached = slices.Delete(e.attached, i, i+1)
	}
	if h.onAdapter == nil {
		return
	}
	var addrs []netip.Prefix
	for _, c := range e.IpConfigurations {
		if addr, err := netip.ParseAddr(c.IpAddress); err == nil {
			addrs = append(addrs, netip.PrefixFrom(addr, int(c.PrefixLength)))
		}
	}
	h.onAdapter("vEthernet ("+e.Name+")", added, addrs)
}

func (h *HNS) modifyEndpoint(e *Endpoint, m modification) error {
	if m.ResourceType != "Policy" {
		return unknown(Unsupported, "ResourceType %q of an endpoint is not simulated", m.ResourceType)
	}
	var change struct{ Policies []Policy }
	if err := decode(string(m.Settings), &change); err != nil {
		return err
	}
	if err := h.v().checkPolicies("endpoint", change.Policies); err != nil {
		return err
	}
	next, err := modify(e.Policies, m.RequestType, change.Policies)
	if err != nil {
		return err
	}
	e.Policies = next
	return nil
}
