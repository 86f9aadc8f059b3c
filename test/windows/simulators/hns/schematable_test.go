package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestSchemaTable: builds have the schema of Microsoft's version map, and the table contains the members that its users
// need.
func TestSchemaTable(t *testing.T) {
	for build, want := range map[int]string{14393: "2.0", 17763: "2.0", 18363: "2.0", 19041: "2.6", 19045: "2.6", 20348: "2.11", 22000: "2.14"} {
		if got := schemaOf(build).String(); got != want {
			t.Errorf("build %d has schema %s, want %s", build, got, want)
		}
	}
	if v := schemaOf(26100); !v.atLeast(2, 16) {
		t.Errorf("build 26100 has schema %s", v)
	}
	for _, m := range []string{"Subnet.Flags 2.7", "LoadBalancerPortMapping.DistributionType 2.7", "LoadBalancerFlags.IPv6 2.8", "SubnetFlags.DoNotReserveGatewayAddress 2.7",
		"L4WfpProxyPolicySetting.InboundExceptions 2.14", "EndpointPolicyType.TierAcl 2.10", "HostComputeLoadBalancer.HostComputeNetwork 2.5"} {
		name, since, _ := strings.Cut(m, " ")
		object, field, _ := strings.Cut(name, ".")
		if got, ok := schema[object][field]; !ok || got.since.String() != since {
			t.Errorf("%s is there since %s (%t), want %s", name, got.since, ok, since)
		}
	}
	for object, fields := range settingsOf {
		for kind, settings := range fields {
			if schema[settings] == nil {
				t.Errorf("%s %s has settings %s, which the table lacks", object, kind, settings)
			}
		}
	}
}

const (
	ofBridge = `{"Name":"pods","Type":"L2Bridge","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Flags":1,"Routes":[{"NextHop":"10.244.1.2","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`
	atTwo    = `{"IpConfigurations":[{"IpAddress":"10.244.1.2"}],"SchemaVersion":{"Major":2,"Minor":0}}`
	tiered   = `{"Policies":[{"Type":"TierAcl","Settings":{"Name":"a","Direction":"In","Order":1,"TierAclRules":[]}},{"Type":"ACL","Settings":{"Action":"Allow","Direction":"In"}}],"SchemaVersion":{"Major":2,"Minor":0}}`
)

// TestNewer: settings newer than the build's schema are refused or silently dropped. In both cases a host's endpoint cannot have its network's
// gateway address before schema 2.7.
func TestNewer(t *testing.T) {
	for _, c := range []struct {
		build           int
		drops           bool
		network, gate   Result
		policies        int // remaining policies; 0 means that the endpoint is refused
		refusedPolicies Result
	}{
		{17763, false, InvalidJSON, 0, 0, InvalidJSON}, {17763, true, 0, AddressReserved, 1, 0},
		{20348, false, 0, 0, 0, InvalidPolicyType}, {20348, true, 0, 0, 0, InvalidPolicyType}, {26100, false, 0, 0, 2, 0}, // TierAcl needs HNS 14.0
	} {
		h := New(Options{Build: c.build, DropsNewer: c.drops})
		what := fmt.Sprintf("build %d, drops %t", c.build, c.drops)
		result, network, record := h.Call("HcnCreateNetwork", []string{zeroGUID, ofBridge})
		if result != c.network {
			t.Errorf("%s: the network: %#x %s, want %#x", what, uint32(result), record, uint32(c.network))
		}
		if result != 0 {
			_, network, _ = h.Call("HcnCreateNetwork", []string{zeroGUID, strings.Replace(ofBridge, `"Flags":1,`, "", 1)})
		} else if result, _, record := h.Call("HcnCreateEndpoint", []string{network, zeroGUID, atTwo}); result != c.gate {
			t.Errorf("%s: the gateway's endpoint: %#x %s, want %#x", what, uint32(result), record, uint32(c.gate))
		}
		result, endpoint, record := h.Call("HcnCreateEndpoint", []string{network, zeroGUID, tiered})
		if result != c.refusedPolicies {
			t.Errorf("%s: the policies: %#x %s", what, uint32(result), record)
		}
		if result != 0 {
			continue
		}
		_, text, _ := h.Call("HcnQueryEndpointProperties", []string{endpoint, ""})
		var e Endpoint
		if err := json.Unmarshal([]byte(text), &e); err != nil || len(e.Policies) != c.policies {
			t.Errorf("%s: %d policies are left, want %d: %s, %v", what, len(e.Policies), c.policies, text, err)
		}
	}
}

// TestContraryV1: reads by HNSCall complete a network, too.
func TestContraryV1(t *testing.T) {
	h := New(Options{Build: 20348, Contrary: 7, Address: func() netip.Addr { return netip.MustParseAddr("192.0.2.9") }})
	_, made, record := h.Call("HNSCall", []string{"POST", "/networks/", `{"Name":"o","Type":"overlay","Subnets":[{"AddressPrefix":"10.0.0.0/24","GatewayAddress":"10.0.0.1","Policies":[{"Type":"VSID","VSID":4096}]}]}`})
	if strings.Contains(made, "192.0.2.9") || record != "" {
		t.Errorf("the creator's answer: %s%s", made, record)
	}
	for range 2 {
		if _, list, _ := h.Call("HNSCall", []string{"GET", "/networks/", ""}); !strings.Contains(list, `"ManagementIP":"192.0.2.9"`) {
			t.Errorf("a read after it: %s", list)
		}
	}
}

// TestContrary: lists change their order but not their members, and an overlay gets its tunnel endpoint one read after its creation.
func TestContrary(t *testing.T) {
	h := New(Options{Build: 20348, Contrary: 7, Address: func() netip.Addr { return netip.MustParseAddr("192.0.2.9") }})
	_, network, _ := h.Call("HcnCreateNetwork", []string{zeroGUID, `{"Name":"o","Type":"Overlay","SchemaVersion":{"Major":2}}`})
	for i, want := range []bool{false, true, true} {
		if _, text, _ := h.Call("HcnQueryNetworkProperties", []string{network, ""}); strings.Contains(text, "DrMacAddress") != want {
			t.Errorf("read %d: %s", i+1, text)
		}
	}
	for range 6 {
		if result, _, record := h.Call("HcnCreateEndpoint", []string{network, zeroGUID, `{"SchemaVersion":{"Major":2}}`}); result != 0 {
			t.Fatal(record)
		}
	}
	orders, members := map[string]bool{}, map[string]bool{}
	for range 20 {
		_, text, _ := h.Call("HcnEnumerateEndpoints", []string{""})
		var ids []string
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			t.Fatal(err)
		}
		orders[text] = true
		slices.Sort(ids)
		members[fmt.Sprint(ids)] = true
	}
	if len(orders) < 2 || len(members) != 1 {
		t.Errorf("%d orders of %d sets", len(orders), len(members))
	}
}
