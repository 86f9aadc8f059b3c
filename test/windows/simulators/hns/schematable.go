package hns

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed schema.tsv
var schemaText string

// member is a field of an object or a value of an enumeration.
type member struct {
	kind   string // "value", or the type of the field
	since  Version
	number uint64 // of a value, if known
	known  bool
}

// schema is the table: objects and enumerations by name, their members by name.
var schema, schemaOfBuild = parseSchema(schemaText)

// parseSchema parses the table. It panics if the table is malformed, which is our own mistake.
func parseSchema(text string) (objects map[string]map[string]member, builds map[int]Version) {
	objects, builds = map[string]map[string]member{}, map[int]Version{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 5 {
			panic(fmt.Sprintf("schema.tsv: %d cells in %q, want 5", len(cells), line))
		}
		m := member{kind: cells[2]}
		if _, err := fmt.Sscanf(cells[3], "%d.%d", &m.since.Major, &m.since.Minor); err != nil {
			panic(fmt.Sprintf("schema.tsv: the version in %q: %v", line, err))
		}
		if cells[4] != "-" {
			number, err := strconv.ParseUint(cells[4], 10, 32)
			if err != nil {
				panic(fmt.Sprintf("schema.tsv: the number in %q: %v", line, err))
			}
			m.number, m.known = number, true
		}
		if m.kind == "build" {
			build, err := strconv.Atoi(cells[1])
			if err != nil {
				panic(fmt.Sprintf("schema.tsv: the build in %q: %v", line, err))
			}
			builds[build] = m.since
			continue
		}
		if objects[cells[0]] == nil {
			objects[cells[0]] = map[string]member{}
		}
		objects[cells[0]][cells[1]] = m
	}
	return objects, builds
}

// schemaOf returns the schema version of a build: that of the newest listed build that is not newer. Builds after the last have
// everything.
func schemaOf(build int) Version {
	listed := slices.Sorted(maps.Keys(schemaOfBuild))
	if build > listed[len(listed)-1] {
		return Version{2, 1 << 16}
	}
	version := Version{2, 0}
	for _, b := range listed {
		if b <= build {
			version = schemaOfBuild[b]
		}
	}
	return version
}

// settingsOf are the schema objects of policy settings.
var settingsOf = map[string]map[string]string{
	"NetworkPolicy": {
		"SourceMacAddress": "SourceMacAddressNetworkPolicySetting", "NetAdapterName": "NetAdapterNameNetworkPolicySetting",
		"InterfaceConstraint": "InterfaceConstraintNetworkPolicySetting", "VSwitchExtension": "VSwitchExtensionNetworkPolicySetting",
		"ProviderAddress": "ProviderAddressNetworkPolicySetting", "DrMacAddress": "DrMacAddressNetworkPolicySetting", "AutomaticDNS": "AutomaticDNSNetworkPolicySetting",
		"RemoteSubnetRoute": "RemoteSubnetRoutePolicySetting", "VxlanPort": "VxlanPortPolicySetting", "SetPolicy": "SetPolicySetting", "L4Proxy": "L4ProxyPolicySetting",
		"LayerConstraint": "LayerConstraintNetworkPolicySetting", "NetworkACL": "NetworkAclPolicySetting",
	},
	"EndpointPolicy": {
		"PortMapping": "PortMappingPolicySetting", "ACL": "AclPolicySetting", "QOS": "QosPolicySetting", "OutBoundNAT": "OutboundNatPolicySetting",
		"SDNRoute": "SDNRoutePolicySetting", "L4Proxy": "L4ProxyPolicySetting", "L4WFPPROXY": "L4WfpProxyPolicySetting", "PortName": "PortnameEndpointPolicySetting",
		"EncapOverhead": "EncapOverheadEndpointPolicySetting", "Iov": "IovPolicySetting", "ProviderAddress": "ProviderAddressEndpointPolicySetting",
		"InterfaceConstraint": "InterfaceConstraintEndpointPolicySetting", "TierAcl": "TierAclPolicySetting",
	},
	"SubnetPolicy": {"VLAN": "VlanPolicySetting", "VSID": "VsidPolicySetting"},
}

// dropped are the members that older versions of HNS are known to drop silently. Upstream's proxy sets DistributionType on HNS 9 too, and only logs
// that session affinity is not supported (winkernel/proxier.go, syncProxyRules).
var dropped = map[string]bool{"LoadBalancerPortMapping.DistributionType": true}

// reader checks one document against a schema version.
type reader struct {
	version Version
	drops   bool // newer members are dropped instead of refused
	changed bool
}

// bySchema refuses members newer than this build's schema, or drops them if Options say so. decode handles members that no schema has.
func (h *HNS) bySchema(object, text string) (string, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var document map[string]any
	if text == "" || decoder.Decode(&document) != nil {
		return text, nil // decode reports the error
	}
	r := reader{version: h.schema, drops: h.drops}
	if err := r.object(object, document); err != nil || !r.changed {
		return text, err
	}
	return encode(document), nil
}

// newer drops a member or refuses it. HNS's own error code is not documented.
func (r *reader) newer(object, name string, since Version, leaveOut func()) error {
	if !r.drops && !dropped[object+"."+name] {
		return fail(InvalidJSON, "%s of %s is new in schema %s, this build has %s", name, object, since, r.version)
	}
	leaveOut()
	r.changed = true
	return nil
}

func (r *reader) object(object string, document map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(document)) {
		m, listed := schema[object][name]
		switch {
		case !listed:
			continue
		case !r.version.atLeast(m.since.Major, m.since.Minor):
			if err := r.newer(object, name, m.since, func() { delete(document, name) }); err != nil {
				return err
			}
			continue
		}
		kind := m.kind
		if of, policy := settingsOf[object]; policy && name == "Settings" {
			text, _ := document["Type"].(string)
			kind = of[text]
		}
		if strings.HasPrefix(object, "Modify") && name == "Settings" {
			kind = map[string]string{"ModifyNetworkSettingRequest": "PolicyNetworkRequest", "ModifyEndpointSettingRequest": "PolicyEndpointRequest"}[object]
		}
		next, keep, err := r.value(strings.TrimPrefix(kind, "[]"), document[name])
		if err != nil {
			return err
		}
		if document[name] = next; !keep {
			delete(document, name)
		}
	}
	return nil
}

// value checks a value of that type. Without keep, the caller drops it.
func (r *reader) value(kind string, value any) (next any, keep bool, err error) {
	switch v := value.(type) {
	case map[string]any:
		return v, true, r.object(kind, v)
	case []any:
		out := []any{}
		for _, one := range v {
			one, keep, err := r.value(kind, one)
			if err != nil {
				return nil, false, err
			}
			// A policy whose type this schema does not have is dropped.
			if policy, is := one.(map[string]any); keep && (!is || settingsOf[kind] == nil || policy["Type"] != nil) {
				out = append(out, one)
			}
		}
		return out, true, nil
	case string:
		m, listed := schema[kind][v]
		if !listed || m.kind != "value" || r.version.atLeast(m.since.Major, m.since.Minor) {
			return v, true, nil
		}
		return v, false, r.newer(kind, v, m.since, func() {})
	case json.Number:
		return r.flags(kind, v)
	}
	return value, true, nil
}

// flags checks a number: one value of an enumeration, or several bits.
func (r *reader) flags(kind string, value json.Number) (next any, keep bool, err error) {
	number, bad := strconv.ParseUint(value.String(), 10, 32)
	if bad != nil || !strings.HasSuffix(kind, "Flags") && kind != "LoadBalancerDistribution" {
		return value, true, nil
	}
	left := number
	for _, name := range slices.Sorted(maps.Keys(schema[kind])) {
		m := schema[kind][name]
		is := m.known && m.number != 0 && number&m.number == m.number
		if !is || r.version.atLeast(m.since.Major, m.since.Minor) {
			continue
		}
		if err := r.newer(kind, name, m.since, func() { left &^= m.number }); err != nil {
			return nil, false, err
		}
	}
	return json.Number(strconv.FormatUint(left, 10)), true, nil
}
