package otherproxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
)

// TestFoundIn: load balancers on our network are ours, because the proxy adopts them; without one, all are others'.
func TestFoundIn(t *testing.T) {
	api := hns.Listing{Fronts: []string{"10.96.0.1:443"}, Networks: []string{"cbr0"}}
	dns := hns.Listing{Fronts: []string{"10.96.0.10:53"}, Networks: []string{"vxlan0"}}
	both := hns.Listing{Fronts: []string{":30080"}, Networks: []string{"cbr0", "vxlan0"}}
	lost := hns.Listing{Fronts: []string{"10.96.0.7:80"}}
	for _, c := range []struct {
		name string
		list []hns.Listing
		ours string
		want string
	}{
		{"none", nil, "", ""},
		{"all ours", []hns.Listing{api, lost}, "cbr0", ""},
		{"no network of ours", []hns.Listing{lost, api}, "", "2 load balancers of HNS at 10.96.0.1:443, 10.96.0.7:80"},
		{"another network", []hns.Listing{api, dns}, "cbr0", "1 load balancer of HNS at 10.96.0.10:53"},
		{"partly elsewhere", []hns.Listing{api, both}, "cbr0", "1 load balancer of HNS at :30080"},
		{"many", []hns.Listing{api, dns, both, lost, api}, "", "5 load balancers of HNS at 10.96.0.10:53, 10.96.0.1:443, 10.96.0.1:443, 2 more"},
		{"no front", []hns.Listing{{Networks: []string{"x"}}}, "", "1 load balancer of HNS"},
	} {
		found := foundIn(c.list, c.ours)
		if got := strings.Join(found.Traces, "|"); got != c.want || (found.Fix == fixWindows) != (c.want != "") {
			t.Errorf("%s: %q, fix %q; want %q", c.name, got, found.Fix, c.want)
		}
	}
}

// TestBounded: however many load balancers there are, an Event has room for them (1,024 bytes).
func TestBounded(t *testing.T) {
	var list []hns.Listing
	for i := range 5000 {
		list = append(list, hns.Listing{Fronts: []string{fmt.Sprintf("[fd00:1234:5678:9abc:def0:1234:5678:%x]:65535", i)}})
	}
	if text := foundIn(list, "").String(); len(text) > 1024 || !strings.Contains(text, "4997 more") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}
