package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	hnssim "github.com/winkube/winkube/test/windows/simulators/hns"
)

const overlaySettings = `{"Name":"winkube.4096","Type":"Overlay","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.244.1.0/24",` +
	`"Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],"Routes":[{"NextHop":"10.244.1.1","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`

// TestNodeJoins: a Service leads to a pod on a node that HNS does not know yet, then to that node's address, and again to its new address.
func TestNodeJoins(t *testing.T) {
	for _, build := range []int{17763, 20348, 26100} {
		c := &client{HNS: hnssim.New(hnssim.Options{Build: build, Log: &calls.Log{}})}
		if _, err := c.create("Network", none, overlaySettings); err != nil {
			t.Fatal(err)
		}
		networks, err := list[hnssim.Network](c, "Network", "")
		if err != nil {
			t.Fatal(err)
		}
		b := hnslb.New(hnslb.Config{Client: c, Network: "winkube.4096", Node: func() (netip.Addr, string) { return netip.MustParseAddr(nodeIP), nodeMAC }})
		want := &proxy.Table{Routes: []proxy.Route{{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: "web"}}, Kind: proxy.ClusterIP,
			Protocol: v1.ProtocolTCP, Front: netip.MustParseAddrPort("10.96.0.10:80"), Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.244.2.7:8080")}}}}}
		for _, step := range []struct{ change, provider, source string }{
			{"", nodeIP, nodeIP}, {"Add 192.168.99.2", "192.168.99.2", "10.244.1.2"},
			{"Remove 192.168.99.2", nodeIP, nodeIP}, {"Add 192.168.99.3", "192.168.99.3", "10.244.1.2"},
		} {
			if verb, provider, ok := strings.Cut(step.change, " "); ok {
				handle, err := c.call("HcnOpenNetwork", networks[0].ID)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.call("HcnModifyNetwork", handle, `{"ResourceType":"Policy","RequestType":"`+verb+`","Settings":{"Policies":[{"Type":"RemoteSubnetRoute","Settings":{`+
					`"DestinationPrefix":"10.244.2.0/24","IsolationId":4096,"ProviderAddress":"`+provider+`","DistributedRouterMacAddress":"00-15-5D-00-00-02"}}]}}`); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Sync(t.Context(), want, []proxy.ServiceName{}); err != nil {
				t.Errorf("%d: %q: %v", build, step.change, err)
			}
			for _, line := range []string{`  endpoint remote 10.244.2.7 mac 02-11-0a-f4-02-07
    policy ProviderAddress {"ProviderAddress":"` + step.provider + `"}
`, "  endpoint local 10.244.1.2 mac " + nodeMAC + "\n", "load balancer 10.96.0.10 tcp 80 to 8080 source " + step.source + "\n  on remote 10.244.2.7\n"} {
				if got := c.String(); !strings.Contains(got, line) {
					t.Errorf("%d: %q: no %q in\n%s", build, step.change, line, got)
				}
			}
			writes := c.writes
			if err := b.Sync(t.Context(), want, []proxy.ServiceName{}); err != nil || c.writes != writes {
				t.Errorf("%d: %q again: %v, %d calls", build, step.change, err, c.writes-writes)
			}
		}
	}
}

// TestAgainOverlay: on an overlay, with endpoints here, on another node and on one that HNS does not know yet, a second whole Sync changes nothing,
// however HNS answers; nor does one of a new proxy. Foreign objects stay.
func TestAgainOverlay(t *testing.T) {
	for _, build := range []int{17763, 20348, 26100} {
		for _, variant := range variants {
			what := fmt.Sprintf("build %d, %+v", build, variant)
			variant.Build, variant.Address = build, func() netip.Addr { return netip.MustParseAddr(nodeIP) }
			c := newClient(t, build)
			variant.Log = c.log
			c.HNS = hnssim.New(variant)
			for _, settings := range []string{overlaySettings, nat} {
				if _, err := c.create("Network", none, settings); err != nil {
					t.Fatal(err)
				}
			}
			ours, err := c.Network(t.Context(), "winkube.4096")
			if err != nil {
				t.Fatal(err)
			}
			c.addRemote(t, ours.ID, "10.244.2.0/24", "192.168.99.2")
			local := netip.MustParseAddr("10.244.1.7")
			if _, err := c.CreateEndpoint(t.Context(), ours, hns.Endpoint{Addrs: []netip.Addr{local}, Provider: netip.MustParseAddr(nodeIP)}); err != nil {
				t.Fatal(err)
			}
			before := plant(t, c)
			cfg := hnslb.Config{Client: c, Network: "winkube.4096", Overlay: true, Build: build, Node: func() (netip.Addr, string) { return netip.MustParseAddr(nodeIP), nodeMAC }}
			want := every(local)
			want.Routes = slices.DeleteFunc(want.Routes, func(r proxy.Route) bool { return r.Front.Addr().Is6() }) // our overlays have one family
			withoutAffinity := map[int]int{17763: 3, 20348: 1, 26100: 1}[build]                                    // or without its time
			b := hnslb.New(cfg)
			sync := func(b *hnslb.Balancer) {
				t.Helper()
				failed, rest := proxy.RouteErrors(b.Sync(t.Context(), want, nil))
				if len(failed) != withoutAffinity || len(rest) > 0 {
					t.Fatalf("%s: %v, %v", what, failed, rest)
				}
			}
			sync(b)
			state, log := c.String(), len(c.log.Calls())
			if got := strings.Count(state, "load balancer"); got != len(want.Routes)+2 { // of which two are others'
				t.Errorf("%s: %d load balancers for %d Routes:\n%s", what, got, len(want.Routes), state)
			}
			for i, again := range []*hnslb.Balancer{b, b, hnslb.New(cfg), hnslb.New(cfg)} {
				sync(again)
				if changes := changing(c.log.Calls()[log:]); len(changes) > 0 || c.String() != state {
					t.Errorf("%s: Sync %d changes\n%v\nfrom\n%s\nto\n%s", what, i+2, changes, state, c)
					log = len(c.log.Calls())
				}
			}
			if err := hnslb.New(cfg).Sync(t.Context(), &proxy.Table{}, nil); err != nil || strings.Count(c.String(), "load balancer") != 2 {
				t.Errorf("%s: after cleaning up (%v):\n%s", what, err, c)
			}
			for _, line := range before {
				if !strings.Contains(c.String(), line) {
					t.Errorf("%s: %q of others is gone:\n%s", what, line, c)
				}
			}
		}
	}
}

// addRemote tells an overlay network of the subnet of another node.
func (c *client) addRemote(t *testing.T, network hns.ID, subnet, provider string) {
	t.Helper()
	handle, err := c.call("HcnOpenNetwork", network.String())
	if err == nil {
		_, err = c.call("HcnModifyNetwork", handle, `{"ResourceType":"Policy","RequestType":"Add","Settings":{"Policies":[{"Type":"RemoteSubnetRoute","Settings":{`+
			`"DestinationPrefix":"`+subnet+`","IsolationId":4096,"ProviderAddress":"`+provider+`","DistributedRouterMacAddress":"00-15-5D-00-00-02"}}]}}`)
	}
	if err == nil {
		_, err = c.call("HcnCloseNetwork", handle)
	}
	if err != nil {
		t.Fatal(err)
	}
}
