package hns

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Microsoft/hcsshim"
)

// TestCorpus parses documents of real HNS, from public issues, as this package's callers get them: with hcsshim's types
// for the first API.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob(`..\..\test\windows\simulators\replay\testdata\corpus\*.json`)
	if err != nil || len(files) < 10 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Kind     string
			Document json.RawMessage
		}
		// Fields of each source document that the tests of this package check.
		var want struct {
			ID, Name, Type, VirtualNetwork, VirtualNetworkName, MacAddress, IPAddress, DNSSuffix string
			Subnets                                                                              []struct{ AddressPrefix string }
			References                                                                           []string
			SharedContainers                                                                     []string
			Policies                                                                             []json.RawMessage
		}
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if err := json.Unmarshal(d.Document, &want); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		switch d.Kind {
		case "v1/network":
			var n hcsshim.HNSNetwork
			if err := json.Unmarshal(d.Document, &n); err != nil || n.Id != want.ID || n.Name != want.Name || n.Type != want.Type || len(n.Subnets) != len(want.Subnets) || len(n.Policies) != len(want.Policies) {
				t.Errorf("%s: %+v, %v", file, n, err)
			}
		case "v1/endpoint":
			var e hcsshim.HNSEndpoint
			if err := json.Unmarshal(d.Document, &e); err != nil || e.Id != want.ID || e.VirtualNetwork != want.VirtualNetwork || e.VirtualNetworkName != want.VirtualNetworkName ||
				!e.IPAddress.Equal(net.ParseIP(want.IPAddress)) || e.MacAddress != want.MacAddress || e.DNSSuffix != want.DNSSuffix || len(e.Policies) != len(want.Policies) ||
				len(e.SharedContainers) != len(want.SharedContainers) {
				t.Errorf("%s: %+v, %v", file, e, err)
			}
		case "v1/policylist":
			var l hcsshim.PolicyList
			if err := json.Unmarshal(d.Document, &l); err != nil || l.ID != want.ID || len(l.EndpointReferences) != len(want.References) || len(l.Policies) != len(want.Policies) {
				t.Errorf("%s: %+v, %v", file, l, err)
			}
			// An endpoint reference may differ in case from the policy list's own ID, so comparisons must ignore case.
			if strings.ToUpper(l.ID) == l.ID && strings.ToUpper(l.EndpointReferences[0]) == l.EndpointReferences[0] {
				t.Errorf("%s: ID %s, reference %s", file, l.ID, l.EndpointReferences[0])
			}
		}
	}
}
