package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
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

// TestUnknownFields: a field that no schema has is refused, or dropped wherever it is in a document of either version.
func TestUnknownFields(t *testing.T) {
	settings := `{"Name":"n","Type":"NAT","Colour":"red","Ipams":[{"Subnets":[{"IpAddressPrefix":"10.0.0.0/24","Colour":"red","Depth":3,"Routes":[{"NextHop":"10.0.0.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`
	first := `{"Name":"m","Type":"nat","Colour":"red","Subnets":[{"AddressPrefix":"10.0.1.0/24","GatewayAddress":"10.0.1.1","Depth":3}]}`
	for _, drops := range []bool{false, true} {
		log := &calls.Log{}
		h := New(Options{Build: 20348, DropsNewer: drops, Log: log})
		result, handle, record := h.Call("HcnCreateNetwork", []string{zeroGUID, settings})
		again, answer, _ := h.Call("HNSCall", []string{"POST", "/networks/", first})
		if (result == 0) != drops || (again == 0) != drops || (len(log.Unknown()) == 0) != drops {
			t.Errorf("drops %t: %#x %s, %#x %s, unknown %v", drops, uint32(result), record, uint32(again), answer, log.Unknown())
		}
		if !drops {
			continue
		}
		_, text, _ := h.Call("HcnQueryNetworkProperties", []string{handle, ""})
		if both := text + answer; strings.Contains(both, "Colour") || strings.Contains(both, "Depth") || !strings.Contains(both, "10.0.0.0/24") || !strings.Contains(both, "10.0.1.0/24") {
			t.Errorf("it has %s and %s", text, answer)
		}
	}
}

// TestSpelling: HNSCall writes IDs in the case of its version and kind, the Hcn functions in lower case.
func TestSpelling(t *testing.T) {
	for build, want := range map[int]string{14393: "network lower, endpoint lower on lower", 17763: "network upper, endpoint upper on upper", 19041: "network upper, endpoint lower on lower",
		20348: "network upper, endpoint lower on lower", 26100: "network upper, endpoint lower on lower"} {
		h := New(Options{Build: build})
		call := func(method, path, request string) (out struct{ ID, VirtualNetwork string }) {
			var answer struct{ Output any }
			answer.Output = &out
			if _, text, record := h.Call("HNSCall", []string{method, path, request}); json.Unmarshal([]byte(text), &answer) != nil || out.ID == "" {
				t.Fatalf("build %d: %s %s: %s %s", build, method, path, text, record)
			}
			return out
		}
		caseOf := func(id string) string {
			switch id {
			case strings.ToLower(id):
				return "lower"
			case strings.ToUpper(id):
				return "upper"
			}
			return id
		}
		network := call("POST", "/networks/", `{"Name":"n","Type":"nat","Subnets":[{"AddressPrefix":"10.0.0.0/24","GatewayAddress":"10.0.0.1"}]}`)
		endpoint := call("POST", "/endpoints/", fmt.Sprintf(`{"VirtualNetwork":%q}`, network.ID))
		if got := fmt.Sprintf("network %s, endpoint %s on %s", caseOf(network.ID), caseOf(endpoint.ID), caseOf(endpoint.VirtualNetwork)); got != want {
			t.Errorf("build %d: %s, want %s", build, got, want)
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
