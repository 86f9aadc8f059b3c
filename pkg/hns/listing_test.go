package hns

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestListings: load balancers of either version of the API, among lists of other policies.
func TestListings(t *testing.T) {
	raw := func(texts ...string) (out []json.RawMessage) {
		for _, text := range texts {
			out = append(out, json.RawMessage(text))
		}
		return out
	}
	networks := map[ID]string{IDOf("c55b2c86-bd06-400e-bca7-8fb7de11e635"): "cbr0", IDOf("d55b2c86-bd06-400e-bca7-8fb7de11e635"): "vxlan0"}
	got := listings([]policyList{
		{[]string{"/endpoints/C55B2C86-BD06-400E-BCA7-8FB7DE11E635", "/endpoints/c55b2c86-bd06-400e-bca7-8fb7de11e635"}, raw(`{"Type": "ELB", "VIPs": ["10.96.0.1"], "ExternalPort": 443, "InternalPort": 6443, "Protocol": 6}`)},
		{[]string{"/endpoints/d55b2c86-bd06-400e-bca7-8fb7de11e635", "/endpoints/c55b2c86-bd06-400e-bca7-8fb7de11e635"}, raw(`{"Type": "ELB", "ExternalPort": 30080}`)},
		{nil, raw(`{"Type": "ELB", "VIPs": ["fd00::1"], "ExternalPort": 53}`, `{"Type": "ELB", "VIPs": ["fd00::1"], "ExternalPort": 54}`)},
		{[]string{"/endpoints/gone", "rubbish", ""}, raw(`{"Type": "ELB", "VIPs": ["10.96.0.2"], "ExternalPort": 80}`)},
		{nil, raw(`{"Type": "ROUTE", "DestinationPrefix": "10.96.0.0/12"}`)},
		{nil, raw(`[]`)},
		{nil, nil},
	}, networks)
	want := []Listing{
		{[]string{"10.96.0.1:443"}, []string{"cbr0"}},
		{[]string{":30080"}, []string{"cbr0", "vxlan0"}},
		{[]string{"[fd00::1]:53", "[fd00::1]:54"}, nil},
		{[]string{"10.96.0.2:80"}, nil},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestListingOfRealHNS reads a load balancer that kube-proxy made by the second version of the API, as the first
// version listed it.
func TestListingOfRealHNS(t *testing.T) {
	text, err := os.ReadFile("../../test/windows/simulators/replay/testdata/corpus/policylist-15.0.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Document policyList }
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	got := listings([]policyList{document.Document}, nil)
	if want := []Listing{{Fronts: []string{"10.96.0.1:55680"}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
