package hns

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// HNS v1 documents as hcsshim's internal/hns declares them and Docker's libnetwork fills them in. HNS has one set of objects; v1 and v2
// are two views of it.

type v1Subnet struct {
	AddressPrefix  string            `json:",omitempty"`
	GatewayAddress string            `json:",omitempty"`
	Policies       []json.RawMessage `json:",omitempty"`
}

type v1Network struct {
	ID                   string            `json:",omitempty"`
	Name                 string            `json:",omitempty"`
	Type                 string            `json:",omitempty"`
	NetworkAdapterName   string            `json:",omitempty"`
	SourceMac            string            `json:",omitempty"`
	Policies             []json.RawMessage `json:",omitempty"`
	MacPools             []MacRange        `json:",omitempty"`
	Subnets              []v1Subnet        `json:",omitempty"`
	DNSSuffix            string            `json:",omitempty"`
	DNSServerList        string            `json:",omitempty"`
	DNSServerCompartment uint32            `json:",omitempty"`
	ManagementIP         string            `json:",omitempty"`
	AutomaticDNS         bool              `json:",omitempty"`
	Flags                uint32            `json:",omitempty"`
}

type v1Endpoint struct {
	ID                 string            `json:",omitempty"`
	Name               string            `json:",omitempty"`
	VirtualNetwork     string            `json:",omitempty"`
	VirtualNetworkName string            `json:",omitempty"`
	Policies           []json.RawMessage `json:",omitempty"`
	MacAddress         string            `json:",omitempty"`
	IPAddress          string            `json:",omitempty"`
	IPv6Address        string            `json:",omitempty"`
	DNSSuffix          string            `json:",omitempty"`
	DNSServerList      string            `json:",omitempty"`
	DNSDomain          string            `json:",omitempty"`
	GatewayAddress     string            `json:",omitempty"`
	GatewayAddressV6   string            `json:",omitempty"`
	EnableInternalDNS  bool              `json:",omitempty"`
	DisableICC         bool              `json:",omitempty"`
	PrefixLength       uint8             `json:",omitempty"`
	IPv6PrefixLength   uint8             `json:",omitempty"`
	IsRemoteEndpoint   bool              `json:",omitempty"`
	EnableLowMetric    bool              `json:",omitempty"`
	Namespace          json.RawMessage   `json:",omitempty"`
	EncapOverhead      uint16            `json:",omitempty"`
	SharedContainers   []string          `json:",omitempty"`
	State              uint16            `json:",omitempty"` // 1 created, 2 attached
}

type v1PolicyList struct {
	ID         string            `json:",omitempty"`
	References []string          `json:",omitempty"`
	Policies   []json.RawMessage `json:",omitempty"`
}

type v1ELB struct {
	Type                       string
	SourceVIP                  string   `json:",omitempty"`
	VIPs                       []string `json:",omitempty"`
	ILB                        bool     `json:",omitempty"`
	IsDSR                      bool     `json:",omitempty"`
	Protocol                   uint32   `json:",omitempty"`
	InternalPort, ExternalPort uint16
}

type v1Route struct {
	Type              string
	DestinationPrefix string `json:",omitempty"`
	NextHop           string `json:",omitempty"`
	NeedEncap         bool   `json:",omitempty"`
}

func (in *v1Network) v2() (*Network, error) {
	n := &Network{ID: in.ID, Name: in.Name, Type: in.Type, Flags: in.Flags, SchemaVersion: Version{2, 0}}
	for name := range networkTypes { // v1 ignores case: microsoft/SDN#498 has "l2bridge"
		if strings.EqualFold(name, in.Type) {
			n.Type = name
		}
	}
	var err error
	if n.Policies, err = policiesV2(in.Policies); err != nil {
		return nil, err
	}
	if in.NetworkAdapterName != "" {
		n.Policies = append(n.Policies, policy("NetAdapterName", adapterPolicy{in.NetworkAdapterName}))
	}
	n.MacPool.Ranges = in.MacPools
	ipam := Ipam{Type: "Static"}
	for _, s := range in.Subnets {
		subnet := Subnet{IpAddressPrefix: s.AddressPrefix}
		if s.GatewayAddress != "" {
			all := "0.0.0.0/0"
			if strings.Contains(s.GatewayAddress, ":") {
				all = "::/0"
			}
			subnet.Routes = []Route{{NextHop: s.GatewayAddress, DestinationPrefix: all}}
		}
		if subnet.Policies, err = policiesV2(s.Policies); err != nil {
			return nil, err
		}
		ipam.Subnets = append(ipam.Subnets, subnet)
	}
	n.Ipams = []Ipam{ipam}
	return n, nil
}

func (h *HNS) networkV1(n *Network) v1Network {
	out := v1Network{ID: h.spelled("network", n.ID), Name: n.Name, Type: n.Type, MacPools: n.MacPool.Ranges, Flags: n.Flags, NetworkAdapterName: h.bound[n.ID],
		Policies: policiesV1(n.Policies), ManagementIP: h.managementIP(n)}
	for _, s := range n.subnets() {
		gateway, _ := s.gateway()
		out.Subnets = append(out.Subnets, v1Subnet{s.IpAddressPrefix, gateway.String(), policiesV1(s.Policies)})
	}
	return out
}

func (in *v1Endpoint) v2() (*Endpoint, error) {
	e := &Endpoint{ID: in.ID, Name: in.Name, MacAddress: in.MacAddress, HostComputeNetwork: in.VirtualNetwork, SchemaVersion: Version{2, 0}}
	if in.IsRemoteEndpoint {
		e.Flags = 1
	}
	if in.IPAddress != "" {
		e.IpConfigurations = append(e.IpConfigurations, IPConfig{in.IPAddress, in.PrefixLength})
	}
	if in.GatewayAddress != "" { // a route in v2: CNI plugins pkg/hns endpoint_windows.go GenerateHnsEndpoint and GenerateHcnEndpoint
		e.Routes = append(e.Routes, Route{NextHop: in.GatewayAddress, DestinationPrefix: "0.0.0.0/0"})
	}
	if in.IPv6Address != "" {
		e.IpConfigurations = append(e.IpConfigurations, IPConfig{in.IPv6Address, in.IPv6PrefixLength})
	}
	if in.GatewayAddressV6 != "" {
		e.Routes = append(e.Routes, Route{NextHop: in.GatewayAddressV6, DestinationPrefix: "::/0"})
	}
	if in.DNSServerList != "" {
		e.Dns.ServerList = strings.Split(in.DNSServerList, ",")
	}
	if in.DNSSuffix != "" {
		e.Dns.Search = strings.Split(in.DNSSuffix, ",")
	}
	var err error
	e.Policies, err = policiesV2(in.Policies)
	return e, err
}

func (h *HNS) endpointV1(e *Endpoint) v1Endpoint {
	out := v1Endpoint{ID: h.spelled("endpoint", e.ID), Name: e.Name, VirtualNetwork: h.spelled("endpoint", e.HostComputeNetwork), MacAddress: e.MacAddress,
		IsRemoteEndpoint: e.remote(), SharedContainers: e.attached, Policies: policiesV1(e.Policies), State: 1,
		DNSServerList: strings.Join(e.Dns.ServerList, ","), DNSSuffix: strings.Join(e.Dns.Search, ",")}
	if len(e.attached) > 0 {
		out.State = 2
	}
	if n, err := h.network(e.HostComputeNetwork); err == nil {
		out.VirtualNetworkName = n.Name
	}
	out.GatewayAddress, out.GatewayAddressV6 = e.gateway("0.0.0.0/0"), e.gateway("::/0")
	if addr, bits := e.addressOf(false); addr.IsValid() {
		out.IPAddress, out.PrefixLength = addr.String(), bits
	}
	if addr, bits := e.addressOf(true); addr.IsValid() {
		out.IPv6Address, out.IPv6PrefixLength = addr.String(), bits
	}
	return out
}

func policy(kind string, settings any) Policy {
	return Policy{Type: kind, Settings: json.RawMessage(encode(settings))}
}

// policiesV2 translates v1's policies (hcsshim hnspolicy.go), whose settings are next to the type.
func policiesV2(list []json.RawMessage) ([]Policy, error) {
	var out []Policy
	for _, text := range list {
		var in struct {
			Type, Protocol, PA, VIP, DestinationPrefix, NextHop string
			InternalPort, ExternalPort                          uint16
			VSID, VLAN                                          uint32
			ExceptionList, Destinations                         []string
			NeedEncap, ExternalPortReserved                     bool
			MaximumOutgoingBandwidthInBytes                     uint64
		}
		err := json.Unmarshal(text, &in)
		if in.Type != "ACL" && err == nil {
			err = decode(string(text), &in)
		}
		if err != nil && in.Type != "ACL" {
			return nil, err
		}
		switch in.Type {
		case "VSID":
			out = append(out, policy("VSID", isolationPolicy{in.VSID}))
		case "VLAN":
			out = append(out, policy("VLAN", isolationPolicy{in.VLAN}))
		case "PA":
			out = append(out, policy("ProviderAddress", providerAddressPolicy{in.PA}))
		case "NAT":
			number := map[string]uint32{"tcp": 6, "udp": 17}[strings.ToLower(in.Protocol)]
			out = append(out, policy("PortMapping", portMappingPolicy{Protocol: number, InternalPort: in.InternalPort, ExternalPort: in.ExternalPort}))
		case "OutBoundNAT":
			out = append(out, policy("OutBoundNAT", outboundNATPolicy{VirtualIP: in.VIP, Exceptions: in.ExceptionList, Destinations: in.Destinations}))
		case "ROUTE":
			out = append(out, policy("SDNRoute", RouteSetting{in.DestinationPrefix, in.NextHop, in.NeedEncap}))
		case "QOS":
			out = append(out, policy("QOS", map[string]uint64{"MaximumOutgoingBandwidthInBytes": in.MaximumOutgoingBandwidthInBytes}))
		case "L2Driver":
			out = append(out, Policy{Type: "L2Driver"})
		case "ACL":
			acl, err := aclV2(text)
			if err != nil {
				return nil, err
			}
			out = append(out, acl)
		default:
			return nil, unknown(InvalidPolicyType, "policy %q of HNS v1 is not simulated", in.Type)
		}
	}
	return out, nil
}

func aclV2(text json.RawMessage) (Policy, error) {
	var in struct {
		Type, Id, Protocols, Action, Direction, LocalAddresses, RemoteAddresses, LocalPorts, RemotePorts, RuleType, ServiceName string
		Protocol, InternalPort, LocalPort, RemotePort, Priority                                                                 uint16
	}
	if err := decode(string(text), &in); err != nil {
		return Policy{}, err
	}
	return policy("ACL", aclPolicy{Protocols: in.Protocols, Action: in.Action, Direction: in.Direction, LocalAddresses: in.LocalAddresses,
		RemoteAddresses: in.RemoteAddresses, LocalPorts: in.LocalPorts, RemotePorts: in.RemotePorts, RuleType: in.RuleType, Priority: in.Priority}), nil
}

// policiesV1 translates back, for the types that v1 has.
func policiesV1(list []Policy) []json.RawMessage {
	var out []json.RawMessage
	add := func(value any) { out = append(out, json.RawMessage(encode(value))) }
	for _, p := range list {
		one := []Policy{p}
		switch p.Type {
		case "VSID", "VLAN":
			s, _ := find[isolationPolicy](one, p.Type)
			add(map[string]any{"Type": p.Type, p.Type: s.IsolationId})
		case "ProviderAddress":
			s, _ := find[providerAddressPolicy](one, p.Type)
			add(map[string]any{"Type": "PA", "PA": s.ProviderAddress})
		case "PortMapping":
			s, _ := find[portMappingPolicy](one, p.Type)
			add(map[string]any{"Type": "NAT", "Protocol": strings.ToUpper(protocols[s.Protocol]), "InternalPort": s.InternalPort, "ExternalPort": s.ExternalPort})
		case "OutBoundNAT":
			s, _ := find[outboundNATPolicy](one, p.Type)
			add(map[string]any{"Type": p.Type, "VIP": s.VirtualIP, "ExceptionList": s.Exceptions})
		case "SDNRoute":
			s, _ := find[RouteSetting](one, p.Type)
			add(v1Route{"ROUTE", s.DestinationPrefix, s.NextHop, s.NeedEncap})
		case "L2Driver", "ACL", "QOS":
			fields := map[string]any{}
			_ = json.Unmarshal(p.Settings, &fields) // L2Driver has none
			fields["Type"] = p.Type
			add(fields)
		}
	}
	return out
}

func elbV2(text json.RawMessage, ids []string) (*LoadBalancer, error) {
	var in v1ELB
	if err := decode(string(text), &in); err != nil {
		return nil, err
	}
	l := &LoadBalancer{HostComputeEndpoints: ids, SourceVIP: in.SourceVIP, FrontendVIPs: in.VIPs, SchemaVersion: Version{2, 0},
		PortMappings: []PortMapping{{Protocol: in.Protocol, InternalPort: in.InternalPort, ExternalPort: in.ExternalPort}}}
	if in.ILB {
		l.PortMappings[0].Flags |= ilb
	}
	if in.IsDSR {
		l.Flags |= dsr
	}
	for _, vip := range in.VIPs {
		if addr, err := netip.ParseAddr(vip); err == nil && addr.Is6() {
			l.Flags |= ipv6
		}
	}
	return l, nil
}

// firstLower is Windows 2004 (19041), HNS 11: since then an endpoint's document has the ID of its network in lower case
// (projectcalico/cni-plugin#1019). Its own ID is so too in 13.3 and 15.0, and in 15.0 where a policy list names it.
var firstLower = Version{11, 0}

// spelled returns an ID as a document of that kind has it. Those of HNS 1.1 are in lower case. Later ones are in upper case, but for endpoints'
// since firstLower. Source: the documents of public issues in test/windows/simulators/replay/testdata/corpus.
func (h *HNS) spelled(kind, id string) string {
	if h.version == nil || kind == "endpoint" && h.v().atLeast(firstLower.Major, firstLower.Minor) {
		return strings.ToLower(id)
	}
	return strings.ToUpper(id)
}

func (h *HNS) references(ids []string) (out []string) {
	for _, id := range ids {
		out = append(out, "/endpoints/"+h.spelled("endpoint", id))
	}
	return out
}

func (h *HNS) loadBalancerV1(l *LoadBalancer) v1PolicyList {
	out := v1PolicyList{ID: h.spelled("policylist", l.ID), References: h.references(l.HostComputeEndpoints)}
	for _, p := range l.PortMappings {
		elb := v1ELB{Type: "ELB", SourceVIP: l.SourceVIP, VIPs: l.FrontendVIPs, ILB: p.Flags&ilb != 0, IsDSR: l.Flags&dsr != 0,
			Protocol: p.Protocol, InternalPort: p.InternalPort, ExternalPort: p.ExternalPort}
		out.Policies = append(out.Policies, json.RawMessage(encode(elb)))
	}
	return out
}

func routeV2(text json.RawMessage, ids []string) (*SDNRoute, error) {
	var in v1Route
	if err := decode(string(text), &in); err != nil {
		return nil, err
	}
	return &SDNRoute{HostComputeEndpoints: ids, SchemaVersion: Version{2, 0}, Setting: []RouteSetting{{in.DestinationPrefix, in.NextHop, in.NeedEncap}}}, nil
}

func (h *HNS) routeV1(r *SDNRoute) v1PolicyList {
	out := v1PolicyList{ID: h.spelled("policylist", r.ID), References: h.references(r.HostComputeEndpoints)}
	for _, s := range r.Setting {
		out.Policies = append(out.Policies, json.RawMessage(encode(v1Route{"ROUTE", s.DestinationPrefix, s.NextHop, s.NeedEncap})))
	}
	return out
}
