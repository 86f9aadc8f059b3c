package hns

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
)

// network creates an overlay network for one test. Without HNS it skips the test; on Wine it uses the simulated HNS.
func network(t *testing.T) (Client, Network) {
	t.Helper()
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	vsid, remote := `{"Type":"VSID","Settings":{"IsolationId":4096}}`, `{"DestinationPrefix":"10.244.2.0/24","IsolationId":4096,
		"ProviderAddress":"192.168.1.2","DistributedRouterMacAddress":"00-15-5D-00-00-02"}`
	made, err := (&hcn.HostComputeNetwork{Name: "client-test", Type: hcn.Overlay, SchemaVersion: hcn.V2SchemaVersion(),
		Policies: []hcn.NetworkPolicy{{Type: hcn.RemoteSubnetRoute, Settings: json.RawMessage(remote)}},
		Ipams: []hcn.Ipam{{Subnets: []hcn.Subnet{{IpAddressPrefix: "10.244.1.0/24", Policies: []json.RawMessage{json.RawMessage(vsid)},
			Routes: []hcn.Route{{NextHop: "10.244.1.1", DestinationPrefix: "0.0.0.0/0"}}}}}}}).Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Delete(); err != nil {
			t.Error(err)
		}
	})
	c := NewClient()
	n, err := c.Network(t.Context(), "client-test")
	if err != nil {
		t.Fatal(err)
	}
	want := Network{ID: IDOf(made.Id), Name: "client-test", Overlay: true, Subnet: netip.MustParsePrefix("10.244.1.0/24"),
		Remote: []RemoteSubnet{{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("192.168.1.2"), [6]byte{0, 0x15, 0x5d, 0, 0, 2}}}}
	if !reflect.DeepEqual(n, want) {
		t.Errorf("network %+v, want %+v", n, want)
	}
	return c, n
}

func TestEndpoints(t *testing.T) {
	c, n := network(t)
	if _, err := c.Network(t.Context(), "another"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another network: %v", err)
	}
	want := Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("10.244.2.7")}, MAC: "02-11-0a-f4-02-07", Remote: true, Provider: netip.MustParseAddr("192.168.1.2")}
	id, err := c.CreateEndpoint(t.Context(), n, want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateEndpoint(t.Context(), n, want); err == nil || errors.Is(err, ErrDown) {
		t.Errorf("the address again: %v", err)
	}
	want.ID, want.Network = id, n.ID
	list, err := c.Endpoints(t.Context())
	if err != nil || !slices.ContainsFunc(list, func(got Endpoint) bool { return reflect.DeepEqual(got, want) }) {
		t.Errorf("list %+v, %v", list, err)
	}
	for range 2 {
		if err := c.DeleteEndpoint(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

func TestLoadBalancers(t *testing.T) {
	c, n := network(t)
	endpoint, err := c.CreateEndpoint(t.Context(), n, Endpoint{})
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	for _, lb := range []LoadBalancer{
		{VIP: addr("10.96.0.10"), Protocol: 6, ExternalPort: 80, InternalPort: 8080, SourceVIP: addr("10.244.1.254"), DSR: true, ClientAffinity: true},
		{VIP: addr("203.0.113.1"), Protocol: 17, ExternalPort: 53, InternalPort: 53, ExternalIP: true},
		{Protocol: 6, ExternalPort: 30080, InternalPort: 8080, LocalRouted: true, ExternalIP: true},
		{VIP: addr("fd00::10"), Protocol: 6, ExternalPort: 80, InternalPort: 8080, IPv6: true},
	} {
		lb.Endpoints = []ID{endpoint}
		if lb.ID, err = c.CreateLoadBalancer(t.Context(), lb); err != nil {
			t.Fatal(err)
		}
		lb.InternalPort++
		if lb.ID, err = c.ReplaceLoadBalancer(t.Context(), lb); err != nil {
			t.Fatal(err)
		}
		list, err := c.LoadBalancers(t.Context())
		if err != nil || !slices.ContainsFunc(list, func(got LoadBalancer) bool { return reflect.DeepEqual(got, lb) }) {
			t.Errorf("list %+v, %v, want among them %+v", list, err, lb)
		}
		if _, err := c.CreateLoadBalancer(t.Context(), lb); err == nil {
			t.Error("the front was given twice")
		}
		for range 2 {
			if err := c.DeleteLoadBalancer(t.Context(), lb.ID); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestInternal: the switch is created once, whoever created it, and removed once.
func TestInternal(t *testing.T) {
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	count := func() (n int) {
		list, err := hcsshim.HNSListNetworkRequest("GET", "", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if one.Name == "internal-test" && one.Type == "Internal" {
				n++
			}
		}
		return n
	}
	for _, step := range []struct {
		do   func(string) error
		want int
	}{{MakeInternal, 1}, {MakeInternal, 1}, {RemoveInternal, 0}, {RemoveInternal, 0}} {
		if err := step.do("internal-test"); err != nil || count() != step.want {
			t.Errorf("%v, %d networks, want %d", err, count(), step.want)
		}
	}
}

// TestBridge: the network and the host's endpoint are created once, and the pods' endpoints get their routes.
func TestBridge(t *testing.T) {
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	b := Bridge{Name: "bridge-test", Subnet: netip.MustParsePrefix("10.244.3.0/24"), Gateway: netip.MustParseAddr("10.244.3.2"),
		Routes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("192.168.1.3/32")}}
	id, err := MakeBridge(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := (&hcn.HostComputeNetwork{Id: id.String()}).Delete(); err != nil {
			t.Error(err)
		}
	})
	pod, err := NewClient().CreateEndpoint(t.Context(), Network{ID: id}, Endpoint{Addrs: []netip.Addr{netip.MustParseAddr("10.244.3.7")}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if again, err := MakeBridge(b); err != nil || again != id {
			t.Errorf("%s again is %s: %v", id, again, err)
		}
		if err := JoinBridge(b, false); err != nil {
			t.Error(err)
		}
	}
	addrs, err := LocalAddresses(IDOf(id.Upper()))
	if err != nil || len(addrs) != 2 || !slices.Contains(addrs, b.Gateway) || !slices.Contains(addrs, netip.MustParseAddr("10.244.3.7")) {
		t.Errorf("addresses %v, %v", addrs, err)
	}
	e, err := hcn.GetEndpointByID(pod.String())
	if err != nil || len(e.Policies) != 2 {
		t.Errorf("the pod's endpoint %+v, %v", e, err)
	}
	if err := JoinBridge(b, true); err != nil { // attached already
		t.Error(err)
	}
	if own := named(t, "bridge-test"); own.GatewayAddress != "0.0.0.0" || !own.IPAddress.Equal(b.Gateway.AsSlice()) {
		t.Errorf("the host's endpoint %+v", own)
	}
	learntLater(t, b, e)
	b.Subnet = netip.MustParsePrefix("10.244.4.0/24")
	if _, err := MakeBridge(b); err == nil || !strings.Contains(err.Error(), "is not L2Bridge with 10.244.4.0/24 and gateway 10.244.3.2") {
		t.Errorf("another range: %v", err)
	}
	b.Name = "bridge-gone"
	if err := JoinBridge(b, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("no network: %v", err)
	}
}

// named returns an endpoint by its name, as the first HNS API reports it.
func named(t *testing.T, name string) hcsshim.HNSEndpoint {
	t.Helper()
	list, err := hcsshim.HNSListEndpointRequest()
	i := slices.IndexFunc(list, func(e hcsshim.HNSEndpoint) bool { return e.Name == name })
	if err != nil || i < 0 {
		t.Fatalf("no endpoint %q: %v", name, err)
	}
	return list[i]
}

// TestOwnBridge: a bridge whose gateway in HNS differs from the pods' accepts the host's endpoint without the flag of
// schema 2.7, and our pods' endpoints that use the host as gateway. The simulated host's one running container is
// winkube-test.
func TestOwnBridge(t *testing.T) {
	if _, err := hcn.GetGlobals(); err != nil {
		t.Skipf("no HNS here, real or simulated: %v", err)
	}
	b := Bridge{Name: "own-test", Subnet: netip.MustParsePrefix("10.244.6.0/24"), Gateway: netip.MustParseAddr("10.244.6.2"), Router: netip.MustParseAddr("10.244.6.1"),
		Keep: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Routes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	if _, err := MakeBridge(b); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for range 2 {
			if err := RemoveBridge(b.Name); err != nil {
				t.Error(err)
			}
		}
	}()
	id, err := MakeEndpoint(b.Pods(), PodEndpoint{Container: "winkube-test", Addr: netip.MustParseAddr("10.244.6.3"), Searches: []string{"cluster.local"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(JoinBridge(b, false), AttachEndpoint(id, "winkube-test")); err != nil {
			t.Error(err)
		}
	}
	pod := named(t, EndpointName("winkube-test", b.Name))
	if pod.GatewayAddress != b.Gateway.String() || len(pod.Policies) != 2 || pod.DNSSuffix != "cluster.local" || IDOf(pod.Id) != id {
		t.Errorf("the pod's endpoint %+v", pod)
	}
	if list, err := PodEndpoints(b.Name); err != nil || len(list) != 1 || list[0].Container != "winkube-test" {
		t.Errorf("%+v, %v", list, err)
	}
	b.Router = netip.Addr{}
	if _, err := MakeBridge(b); !errors.Is(err, ErrDiffers) {
		t.Errorf("another gateway: %v", err)
	}
}

// learntLater: ranges that are learnt after the endpoint was created are added to it, only once.
func learntLater(t *testing.T, b Bridge, e *hcn.HostComputeEndpoint) {
	t.Helper()
	nat := hcn.PolicyEndpointRequest{Policies: []hcn.EndpointPolicy{{Type: hcn.OutBoundNAT, Settings: []byte(`{"Exceptions":["10.244.3.0/24"]}`)}}}
	if err := e.ApplyPolicy(hcn.RequestTypeAdd, nat); err != nil { // as the engine does
		t.Fatal(err)
	}
	b.Routes = append(b.Routes, netip.MustParsePrefix("10.100.0.0/16"))
	b.Keep = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("10.100.0.0/16")}
	for range 2 {
		if err := JoinBridge(b, false); err != nil {
			t.Error(err)
		}
		now, err := hcn.GetEndpointByID(e.Id)
		if err != nil || len(now.Policies) != 4 {
			t.Fatalf("%+v, %v", now, err)
		}
		i := slices.IndexFunc(now.Policies, func(p hcn.EndpointPolicy) bool { return p.Type == hcn.OutBoundNAT })
		if text := string(now.Policies[i].Settings); strings.Count(text, "10.100.0.0/16") != 1 || strings.Count(text, "10.244.3.0/24") != 1 {
			t.Errorf("the exceptions are %s", text)
		}
	}
}

// TestWithoutHNS: if Windows has no HNS, or an older one, each call is an error and none panics.
func TestWithoutHNS(t *testing.T) {
	if _, err := hcn.GetGlobals(); err == nil {
		t.Skip("HNS is here")
	}
	c, ctx := NewClient(), t.Context()
	for what, call := range map[string]func() error{
		"Network":             func() error { _, err := c.Network(ctx, "pods"); return err },
		"Endpoints":           func() error { _, err := c.Endpoints(ctx); return err },
		"LoadBalancers":       func() error { _, err := c.LoadBalancers(ctx); return err },
		"CreateEndpoint":      func() error { _, err := c.CreateEndpoint(ctx, Network{ID: IDOf(testID)}, Endpoint{}); return err },
		"DeleteEndpoint":      func() error { return c.DeleteEndpoint(ctx, IDOf(testID)) },
		"CreateLoadBalancer":  func() error { _, err := c.CreateLoadBalancer(ctx, LoadBalancer{}); return err },
		"ReplaceLoadBalancer": func() error { _, err := c.ReplaceLoadBalancer(ctx, LoadBalancer{ID: IDOf(testID)}); return err },
		"DeleteLoadBalancer":  func() error { return c.DeleteLoadBalancer(ctx, IDOf(testID)) },
		"MakeInternal":        func() error { return MakeInternal("switch") },
		"RemoveInternal":      func() error { return RemoveInternal("switch") },
		"MakeBridge":          func() error { _, err := MakeBridge(Bridge{Name: "pods"}); return err },
		"JoinBridge":          func() error { return JoinBridge(Bridge{Name: "pods"}, true) },
		"RemoveBridge":        func() error { return RemoveBridge("pods") },
		"LocalAddresses":      func() error { _, err := LocalAddresses(IDOf(testID)); return err },
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

const testID = "11111111-2222-4333-8444-555555555555"
