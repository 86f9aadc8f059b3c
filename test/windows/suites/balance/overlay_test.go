package balance

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

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
