package hns

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// Policy settings as declared in hcsshim's hcnpolicy.go.
type (
	portMappingPolicy struct {
		Protocol                   uint32
		InternalPort, ExternalPort uint16
		VIP                        string
		Flags                      uint32
	}
	aclPolicy struct {
		Protocols, Action, Direction, LocalAddresses, RemoteAddresses, LocalPorts, RemotePorts, RuleType string
		Priority                                                                                         uint16
	}
	outboundNATPolicy struct {
		VirtualIP                string
		Exceptions, Destinations []string
		Flags                    uint32
		MaxPortPoolUsage         uint16
	}
	l4ProxyPolicy struct {
		IP, Port    string
		Protocol    uint32
		Exceptions  []string
		Destination string
		OutboundNAT bool
	}
	wfpExceptions   struct{ IpAddressExceptions, PortExceptions []string }
	l4WFPProxyTuple struct {
		Protocols, LocalAddresses, RemoteAddresses, LocalPorts, RemotePorts string
		Priority                                                            uint16
	}
	l4WFPProxyPolicy struct {
		InboundProxyPort, OutboundProxyPort   string
		FilterTuple                           l4WFPProxyTuple
		UserSID                               string
		InboundExceptions, OutboundExceptions wfpExceptions
	}
	tierACLRule struct {
		Id, Protocols, TierAclRuleAction, LocalAddresses, RemoteAddresses, LocalPorts, RemotePorts string
		Priority                                                                                   uint16
	}
	tierACLPolicy struct {
		Name, Direction string
		Order           uint16
		TierAclRules    []tierACLRule
	}
	interfacePolicy struct {
		InterfaceGuid                        string
		InterfaceLuid                        uint64
		InterfaceIndex, InterfaceMediaType   uint32
		InterfaceAlias, InterfaceDescription string
	}
	remoteSubnetPolicy struct {
		DestinationPrefix           string
		IsolationId                 uint16
		ProviderAddress             string
		DistributedRouterMacAddress string
	}
	isolationPolicy       struct{ IsolationId uint32 }
	providerAddressPolicy struct{ ProviderAddress string }
	adapterPolicy         struct{ NetworkAdapterName string }
	setPolicy             struct{ Id, Name, PolicyType, Values string }
)

// policies are the policy types by the objects that may have them, each with an empty settings value.
var policies = map[string]map[string]func() any{
	"network": {
		"SourceMacAddress": func() any { return &struct{ SourceMacAddress string }{} },
		"NetAdapterName":   func() any { return &adapterPolicy{} },
		"VSwitchExtension": func() any {
			return &struct {
				ExtensionID string
				Enable      bool
			}{}
		},
		"DrMacAddress":        func() any { return &struct{ Address string }{} },
		"AutomaticDNS":        func() any { return &struct{ Enable bool }{} },
		"InterfaceConstraint": func() any { return &interfacePolicy{} },
		"ProviderAddress":     func() any { return &providerAddressPolicy{} },
		"RemoteSubnetRoute":   func() any { return &remoteSubnetPolicy{} },
		"VxlanPort":           func() any { return &struct{ Port uint16 }{} },
		"HostRoute":           func() any { return &struct{}{} },
		"SetPolicy":           func() any { return &setPolicy{} },
		"L4Proxy":             func() any { return &l4ProxyPolicy{} },
		"LayerConstraint":     func() any { return &struct{ LayerId string }{} },
		"NetworkACL":          func() any { return &aclPolicy{} },
	},
	"subnet": {
		"VLAN": func() any { return &isolationPolicy{} },
		"VSID": func() any { return &isolationPolicy{} },
	},
	"endpoint": {
		"PortMapping":         func() any { return &portMappingPolicy{} },
		"ACL":                 func() any { return &aclPolicy{} },
		"QOS":                 func() any { return &struct{ MaximumOutgoingBandwidthInBytes uint64 }{} },
		"L2Driver":            func() any { return &struct{}{} },
		"OutBoundNAT":         func() any { return &outboundNATPolicy{} },
		"SDNRoute":            func() any { return &RouteSetting{} },
		"L4Proxy":             func() any { return &l4ProxyPolicy{} },
		"L4WFPPROXY":          func() any { return &l4WFPProxyPolicy{} },
		"PortName":            func() any { return &struct{ Name string }{} },
		"EncapOverhead":       func() any { return &struct{ Overhead uint16 }{} },
		"Iov":                 func() any { return &struct{ IovOffloadWeight, QueuePairsRequested, InterruptModeration uint32 }{} },
		"ProviderAddress":     func() any { return &providerAddressPolicy{} },
		"InterfaceConstraint": func() any { return &interfacePolicy{} },
		"TierAcl":             func() any { return &tierACLPolicy{} },
	},
}

// checkPolicies refuses policies that v does not allow on the object (0x803b000e), and settings that do not match the type (0x803b000d,
// as seen in projectcalico/calico#8465).
func (v Version) checkPolicies(where string, list []Policy) error {
	for _, p := range list {
		settings, ok := policies[where][p.Type]
		if !ok {
			return unknown(InvalidPolicyType, "%q is no policy of a(n) %s", p.Type, where)
		}
		if !v.supports(p.Type) {
			return fail(InvalidPolicyType, "HNS %s has no policy %s", v, p.Type)
		}
		into := settings()
		if len(p.Settings) > 0 {
			if err := decode(string(p.Settings), into); err != nil {
				f := resultOf(err)
				return &failure{InvalidPolicy, "settings of " + p.Type + ": " + f.detail, f.unknown}
			}
		}
		if err := checkSettings(into); err != nil {
			return err
		}
	}
	return nil
}

// checkSettings validates the values. Missing or malformed ones are HCN_E_INVALID_POLICY ("invalid or missing
// parameters").
func checkSettings(settings any) error {
	bad := func(format string, args ...any) error { return fail(InvalidPolicy, format, args...) }
	switch s := settings.(type) {
	case *remoteSubnetPolicy:
		if _, err := netip.ParsePrefix(s.DestinationPrefix); err != nil {
			return bad("DestinationPrefix: %v", err)
		}
		if _, err := netip.ParseAddr(s.ProviderAddress); err != nil {
			return bad("ProviderAddress: %v", err)
		}
		if s.IsolationId < minVSID {
			return bad("IsolationId is %d, want at least %d", s.IsolationId, minVSID)
		}
		if !validMAC(s.DistributedRouterMacAddress) {
			return bad("DistributedRouterMacAddress is %q", s.DistributedRouterMacAddress)
		}
	case *providerAddressPolicy:
		if _, err := netip.ParseAddr(s.ProviderAddress); err != nil {
			return bad("ProviderAddress: %v", err)
		}
	case *RouteSetting:
		if _, err := netip.ParsePrefix(s.DestinationPrefix); err != nil {
			return bad("DestinationPrefix: %v", err)
		}
	case *outboundNATPolicy:
		for _, text := range slices.Concat(s.Exceptions, s.Destinations) {
			if _, err := netip.ParsePrefix(text); err != nil {
				if _, err := netip.ParseAddr(text); err != nil {
					return bad("OutBoundNAT: %v", err)
				}
			}
		}
	case *portMappingPolicy:
		if s.InternalPort == 0 {
			return fail(InvalidInternalPort, "InternalPort is 0")
		}
		if s.Protocol != 6 && s.Protocol != 17 {
			return bad("Protocol is %d, want 6 or 17", s.Protocol)
		}
	case *aclPolicy:
		if !slices.Contains([]string{"Allow", "Block", "Pass"}, s.Action) || !slices.Contains([]string{"In", "Out"}, s.Direction) {
			return bad("ACL: action %q, direction %q", s.Action, s.Direction)
		}
	}
	return nil
}

// minVSID is the lowest virtual subnet of an overlay network on Windows (flannel's backends.md: VNI "should be greater than or equal to
// 4096 on Windows").
const minVSID = 4096

// find returns the settings of the first policy of a type.
func find[T any](list []Policy, kind string) (T, bool) {
	var settings T
	i := slices.IndexFunc(list, func(p Policy) bool { return p.Type == kind })
	if i < 0 {
		return settings, false
	}
	if len(list[i].Settings) > 0 && json.Unmarshal(list[i].Settings, &settings) != nil {
		return settings, false
	}
	return settings, true
}

// modify adds, removes or replaces policies. It refuses to add an existing one (HCN_E_POLICY_ALREADY_EXISTS) or to remove a missing one
// (HCN_E_POLICY_NOT_FOUND).
func modify(have []Policy, request string, change []Policy) ([]Policy, error) {
	same := func(p Policy) func(Policy) bool {
		return func(q Policy) bool { return p.Type == q.Type && canonical(p.Settings) == canonical(q.Settings) }
	}
	out := slices.Clone(have)
	switch request {
	case "Add":
		for _, p := range change {
			if slices.ContainsFunc(out, same(p)) {
				return nil, fail(PolicyExists, "policy %s is there", p.Type)
			}
			out = append(out, p)
		}
	case "Remove":
		for _, p := range change {
			i := slices.IndexFunc(out, same(p))
			if i < 0 {
				return nil, fail(PolicyNotFound, "policy %s is not there", p.Type)
			}
			out = slices.Delete(out, i, i+1)
		}
	case "Update":
		for _, p := range change {
			out = slices.DeleteFunc(out, func(q Policy) bool { return q.Type == p.Type })
		}
		out = append(out, change...)
	default:
		return nil, unknown(Unsupported, "RequestType %q of policies is not simulated", request)
	}
	return out, nil
}

// canonical returns a JSON document with sorted fields and without whitespace.
func canonical(text json.RawMessage) string {
	var value any
	if len(text) == 0 || json.Unmarshal(text, &value) != nil {
		return string(text)
	}
	return encode(value)
}
