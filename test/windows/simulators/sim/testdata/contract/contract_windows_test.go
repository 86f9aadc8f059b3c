// Package contract runs Microsoft's hcsshim and wireguard's winipcfg against the simulators. Package sim's tests build it for Windows,
// run it under Wine, and check the calls that arrive.
package contract

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

func subnet(policies ...json.RawMessage) hcn.Ipam {
	return hcn.Ipam{Type: "Static", Subnets: []hcn.Subnet{{IpAddressPrefix: "10.244.1.0/24", Policies: policies,
		Routes: []hcn.Route{{NextHop: "10.244.1.2", DestinationPrefix: "0.0.0.0/0"}}}}}
}

// must fails the test on an error.
func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func bridge(t *testing.T) *hcn.HostComputeNetwork {
	t.Helper()
	return must[*hcn.HostComputeNetwork](t)((&hcn.HostComputeNetwork{Name: "cbr0", Type: hcn.L2Bridge, Ipams: []hcn.Ipam{subnet()}, SchemaVersion: hcn.V2SchemaVersion()}).Create())
}

func TestFeatures(t *testing.T) {
	features, err := hcn.GetCachedSupportedFeatures()
	if err != nil || !features.Api.V2 || !features.DSR || !features.IPv6DualStack || features.ModifyLoadbalancer {
		t.Errorf("features of Server 2022: %+v, %v", features, err)
	}
}

func TestNetworks(t *testing.T) {
	network := bridge(t)
	if again, err := hcn.GetNetworkByName("cbr0"); err != nil || again.Id != network.Id || again.Type != hcn.L2Bridge || len(again.Ipams) != 1 {
		t.Errorf("by name: %+v, %v", again, err)
	}
	if again, err := hcn.GetNetworkByID(network.Id); err != nil || again.Name != "cbr0" {
		t.Errorf("by ID: %+v, %v", again, err)
	}
	if _, err := hcn.GetNetworkByName("other"); !hcn.IsNotFoundError(err) {
		t.Errorf("another name: %v", err)
	}
	if _, err := (&hcn.HostComputeNetwork{Name: "cbr0", Type: hcn.L2Bridge, SchemaVersion: hcn.V2SchemaVersion()}).Create(); err == nil || hcn.IsPortAlreadyExistsError(err) {
		t.Errorf("the name again: %v", err)
	}
	if list, err := hcn.ListNetworks(); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	vsid, err := json.Marshal(hcn.SubnetPolicy{Type: hcn.VSID, Settings: json.RawMessage(`{"IsolationId":4096}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&hcn.HostComputeNetwork{Name: "vx", Type: hcn.Overlay, Ipams: []hcn.Ipam{subnet(vsid)}, SchemaVersion: hcn.V2SchemaVersion()}).Create(); err == nil {
		t.Error("an overlay on the bridge's adapter was made")
	}
	if err := network.Delete(); err != nil {
		t.Error(err)
	}
	if err := network.Delete(); err == nil {
		t.Error("deleted twice")
	}
}

func TestEndpointsAndLoadBalancers(t *testing.T) {
	network := bridge(t)
	defer network.Delete()
	endpoint := must[*hcn.HostComputeEndpoint](t)
	local := endpoint(network.CreateEndpoint(&hcn.HostComputeEndpoint{Name: "pod", SchemaVersion: hcn.V2SchemaVersion()}))
	remote := endpoint(network.CreateRemoteEndpoint(&hcn.HostComputeEndpoint{IpConfigurations: []hcn.IpConfig{{IpAddress: "10.244.2.7"}}, MacAddress: "02-11-0a-f4-02-07",
		SchemaVersion: hcn.V2SchemaVersion()}))
	if local.IpConfigurations[0].IpAddress != "10.244.1.3" || remote.Flags&hcn.EndpointFlagsRemoteEndpoint == 0 {
		t.Errorf("endpoints %+v, %+v", local, remote)
	}
	if list, err := hcn.ListEndpointsOfNetwork(network.Id); err != nil || len(list) != 2 {
		t.Errorf("of the network: %v, %v", list, err)
	}
	if list, err := hcn.ListEndpointsOfNetwork("0000000f-0000-4000-8000-000000000001"); err != nil || len(list) != 0 {
		t.Errorf("of another network: %v, %v", list, err)
	}
	both := []hcn.HostComputeEndpoint{*local, *remote}
	lb := must[*hcn.HostComputeLoadBalancer](t)(hcn.AddLoadBalancer(both, hcn.LoadBalancerFlagsDSR, hcn.LoadBalancerPortMappingFlagsILB, "", []string{"10.96.0.10"}, 6, 8080, 80))
	host := must[*hcn.HostComputeLoadBalancer](t)(hcn.AddLoadBalancer(both[:1], 0, hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP, "", nil, 6, 8080, 30080))
	if _, err := hcn.AddLoadBalancer(both[:1], 0, 0, "", nil, 6, 8080, 30080); !hcn.IsPortAlreadyExistsError(err) {
		t.Errorf("the host port again: %v", err)
	}
	if _, err := lb.Update(lb.Id); !hcn.IsNotImplemented(err) {
		t.Errorf("modifying on Server 2022: %v", err)
	}
	if list, err := hcn.ListLoadBalancers(); err != nil || len(list) != 2 || list[0].FrontendVIPs[0] != "10.96.0.10" {
		t.Errorf("load balancers: %v, %v", list, err)
	}
	if lb, err := lb.RemoveEndpoint(remote); err != nil {
		t.Error(err)
	} else if err := lb.Delete(); err != nil {
		t.Error(err)
	}
	if err := host.Delete(); err != nil {
		t.Error(err)
	}
	if err := host.Delete(); !hcn.IsElementNotFoundError(err) {
		t.Errorf("deleted twice: %v", err)
	}
	nat := hcn.PolicyEndpointRequest{Policies: []hcn.EndpointPolicy{{Type: hcn.OutBoundNAT, Settings: json.RawMessage(`{"Exceptions":["10.244.0.0/16"]}`)}}}
	if err := local.ApplyPolicy(hcn.RequestTypeAdd, nat); err != nil {
		t.Error(err)
	}
	if err := local.ApplyPolicy(hcn.RequestTypeAdd, hcn.PolicyEndpointRequest{Policies: []hcn.EndpointPolicy{{Type: "Colour"}}}); err == nil {
		t.Error("a policy that is none was applied")
	}
}

func TestNamespacesAndRoutes(t *testing.T) {
	network := bridge(t)
	defer network.Delete()
	endpoint := must[*hcn.HostComputeEndpoint](t)(network.CreateEndpoint(&hcn.HostComputeEndpoint{Name: "pod", SchemaVersion: hcn.V2SchemaVersion()}))
	namespace := must[*hcn.HostComputeNamespace](t)(hcn.NewNamespace(hcn.NamespaceTypeHost).Create())
	if err := hcn.AddNamespaceEndpoint(namespace.Id, endpoint.Id); err != nil {
		t.Fatal(err)
	}
	if err := hcn.AddNamespaceEndpoint(namespace.Id, endpoint.Id); err == nil {
		t.Error("added twice")
	}
	if ids, err := hcn.GetNamespaceEndpointIds(namespace.Id); err != nil || len(ids) != 1 || ids[0] != endpoint.Id {
		t.Errorf("in the namespace: %v, %v", ids, err)
	}
	if err := hcn.RemoveNamespaceEndpoint(namespace.Id, endpoint.Id); err != nil {
		t.Error(err)
	}
	if err := namespace.Delete(); err != nil {
		t.Error(err)
	}
	if _, err := hcn.GetNamespaceByID(namespace.Id); !hcn.IsNotFoundError(err) {
		t.Errorf("gone: %v", err)
	}
	route := must[*hcn.HostComputeRoute](t)((&hcn.HostComputeRoute{HostComputeEndpoints: []string{endpoint.Id}, SchemaVersion: hcn.V2SchemaVersion(),
		Setting: []hcn.SDNRoutePolicySetting{{DestinationPrefix: "10.96.0.0/12", NextHop: "10.244.1.2", NeedEncap: true}}}).Create())
	if list, err := hcn.ListRoutes(); err != nil || len(list) != 1 || list[0].ID != route.ID {
		t.Errorf("routes: %v, %v", list, err)
	}
	if err := route.Delete(); err != nil {
		t.Error(err)
	}
}

// TestV1 uses HNS v1 as Docker does.
func TestV1(t *testing.T) {
	network := must[*hcsshim.HNSNetwork](t)(hcsshim.HNSNetworkRequest("POST", "", `{"Name":"nat","Type":"nat","Subnets":[{"AddressPrefix":"172.20.0.0/16","GatewayAddress":"172.20.0.1"}]}`))
	endpoint := must[*hcsshim.HNSEndpoint](t)((&hcsshim.HNSEndpoint{Name: "c", VirtualNetwork: network.Id}).Create())
	if endpoint.IPAddress.String() != "172.20.0.2" || endpoint.GatewayAddress != "172.20.0.1" {
		t.Errorf("endpoint %+v", endpoint)
	}
	if err := endpoint.HostAttach(1); err != nil {
		t.Error(err)
	}
	if lists, err := hcsshim.HNSListPolicyListRequest(); err != nil || len(lists) != 0 {
		t.Errorf("policy lists: %v, %v", lists, err)
	}
	list := must[*hcsshim.PolicyList](t)(hcsshim.AddLoadBalancer([]hcsshim.HNSEndpoint{*endpoint}, true, "", "10.96.0.1", 6, 80, 80))
	if _, err := list.Delete(); err != nil {
		t.Error(err)
	}
	if _, err := endpoint.Delete(); err != nil {
		t.Error(err)
	}
	if _, err := hcsshim.GetHNSEndpointByID(endpoint.Id); err == nil {
		t.Error("the endpoint is still there")
	}
	if _, err := network.Delete(); err != nil {
		t.Error(err)
	}
}

// adapter returns one of Wine's adapters that is up and not loopback.
func adapter(t *testing.T) winipcfg.LUID {
	t.Helper()
	for _, row := range must[[]winipcfg.MibIfRow2](t)(winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal)) {
		if row.OperStatus == winipcfg.IfOperStatusUp {
			return row.InterfaceLUID
		}
	}
	t.Skip("no adapter is up")
	return 0
}

// TestHeard waits until an adapter changes; package sim's TestLostNotification changes one.
func TestHeard(t *testing.T) {
	heard := make(chan struct{}, 1)
	callback := must[*winipcfg.InterfaceChangeCallback](t)(winipcfg.RegisterInterfaceChangeCallback(func(winipcfg.MibNotificationType, *winipcfg.MibIPInterfaceRow) {
		select {
		case heard <- struct{}{}:
		default:
		}
	}))
	<-heard
	if err := callback.Unregister(); err != nil {
		t.Error(err)
	}
}

func TestRoutes(t *testing.T) {
	luid := adapter(t)
	heard := make(chan winipcfg.MibNotificationType, 10)
	callback := must[*winipcfg.RouteChangeCallback](t)(winipcfg.RegisterRouteChangeCallback(func(kind winipcfg.MibNotificationType, _ *winipcfg.MibIPforwardRow2) { heard <- kind }))
	destination, via := netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("192.0.2.1")
	if err := luid.AddRoute(destination, via, 256); err != nil {
		t.Fatal(err)
	}
	if err := luid.AddRoute(destination, via, 256); !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		t.Errorf("again: %v", err)
	}
	found := false
	for _, row := range must[[]winipcfg.MibIPforwardRow2](t)(winipcfg.GetIPForwardTable2(windows.AF_UNSPEC)) {
		found = found || row.DestinationPrefix.Prefix() == destination && row.NextHop.Addr() == via && row.Metric == 256
	}
	if !found {
		t.Error("the route is not in the table")
	}
	if row, err := luid.Route(destination, via); err != nil || row.Metric != 256 {
		t.Errorf("the route: %+v, %v", row, err)
	}
	if err := luid.DeleteRoute(destination, via); err != nil {
		t.Error(err)
	}
	if err := luid.DeleteRoute(destination, via); !errors.Is(err, windows.ERROR_NOT_FOUND) {
		t.Errorf("deleted twice: %v", err)
	}
	var got []winipcfg.MibNotificationType
	for range 2 {
		select {
		case kind := <-heard:
			got = append(got, kind)
		case <-time.After(3 * time.Minute):
			t.Fatalf("heard %d and no more", got)
		}
	}
	slices.Sort(got) // winipcfg starts a goroutine per change, so that their order varies
	if want := []winipcfg.MibNotificationType{winipcfg.MibAddInstance, winipcfg.MibDeleteInstance}; !slices.Equal(got, want) {
		t.Errorf("heard %d, want %d", got, want)
	}
	if err := callback.Unregister(); err != nil {
		t.Error(err)
	}
}

func TestAddresses(t *testing.T) {
	luid := adapter(t)
	address := netip.MustParsePrefix("10.96.0.10/32")
	if err := luid.AddIPAddress(address); err != nil {
		t.Fatal(err)
	}
	if err := luid.AddIPAddress(address); !errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) {
		t.Errorf("again: %v", err)
	}
	row, err := luid.IPAddress(address.Addr())
	if err != nil || row.OnLinkPrefixLength != 32 || row.DadState != winipcfg.DadStatePreferred {
		t.Errorf("the address: %+v, %v", row, err)
	}
	if err := luid.DeleteIPAddress(address); err != nil {
		t.Error(err)
	}
	if err := luid.DeleteIPAddress(address); !errors.Is(err, windows.ERROR_NOT_FOUND) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestHotAttach: a running container gets an endpoint of an overlay; HNS v1 returns its DNS and policies as they were written.
func TestHotAttach(t *testing.T) {
	vsid := must[[]byte](t)(json.Marshal(hcn.SubnetPolicy{Type: hcn.VSID, Settings: json.RawMessage(`{"IsolationId":4096}`)}))
	network := must[*hcn.HostComputeNetwork](t)((&hcn.HostComputeNetwork{Name: "vx", Type: hcn.Overlay, Ipams: []hcn.Ipam{subnet(vsid)}, SchemaVersion: hcn.V2SchemaVersion()}).Create())
	defer network.Delete()
	endpoint := must[*hcsshim.HNSEndpoint](t)
	bare := endpoint((&hcsshim.HNSEndpoint{Name: "bare", VirtualNetwork: network.Id}).Create())
	if err := hcsshim.HotAttachEndpoint("contract", bare.Id); err == nil {
		t.Error("an endpoint without provider address was attached")
	}
	made := endpoint((&hcsshim.HNSEndpoint{Name: "pod", VirtualNetwork: network.Id, DNSServerList: "10.96.0.10,10.96.0.11", DNSSuffix: "cluster.local",
		Policies: []json.RawMessage{json.RawMessage(`{"Type":"PA","PA":"192.168.1.3"}`)}}).Create())
	for _, id := range []string{"another", "contract"} {
		if err := hcsshim.HotAttachEndpoint(id, made.Id); (err == nil) != (id == "contract") {
			t.Errorf("attach %s: %v", id, err)
		}
	}
	got := endpoint(hcsshim.GetHNSEndpointByID(made.Id))
	if !slices.Equal(got.SharedContainers, []string{"contract"}) || got.DNSServerList != made.DNSServerList || got.DNSSuffix != "cluster.local" || len(got.Policies) != 1 {
		t.Errorf("attached: %+v", got)
	}
	if err := hcsshim.HotDetachEndpoint("contract", made.Id); err != nil {
		t.Error(err)
	}
	if got := endpoint(hcsshim.GetHNSEndpointByID(made.Id)); len(got.SharedContainers) != 0 {
		t.Errorf("detached: %+v", got)
	}
}

func TestForwarding(t *testing.T) {
	luid := adapter(t)
	row := must[*winipcfg.MibIPInterfaceRow](t)(luid.IPInterface(windows.AF_INET))
	if row.ForwardingEnabled || row.NLMTU != 1500 {
		t.Errorf("at first: %+v", row)
	}
	row.ForwardingEnabled, row.SitePrefixLength = true, 0
	if err := row.Set(); err != nil {
		t.Fatal(err)
	}
	if row := must[*winipcfg.MibIPInterfaceRow](t)(luid.IPInterface(windows.AF_INET)); !row.ForwardingEnabled {
		t.Error("forwarding is off")
	}
}

func TestCounters(t *testing.T) {
	dll := windows.NewLazySystemDLL("pdh.dll")
	call := func(name string, args ...uintptr) uint32 {
		result, _, _ := dll.NewProc(name).Call(args...)
		return uint32(result)
	}
	path := func(text string) uintptr { return uintptr(unsafe.Pointer(windows.StringToUTF16Ptr(text))) }
	var query, counter uintptr
	if got := call("PdhOpenQueryW", 0, 0, uintptr(unsafe.Pointer(&query))); got != 0 {
		t.Fatalf("open: %#x", got)
	}
	if got := call("PdhAddEnglishCounterW", query, path(`\Memory\Nothing`), 0, uintptr(unsafe.Pointer(&counter))); got != 0xc0000bb9 {
		t.Errorf("an unknown counter: %#x", got)
	}
	if got := call("PdhAddEnglishCounterW", query, path(`\Memory\Available Bytes`), 0, uintptr(unsafe.Pointer(&counter))); got != 0 {
		t.Fatalf("add: %#x", got)
	}
	if got := call("PdhCollectQueryData", query); got != 0 {
		t.Errorf("collect: %#x", got)
	}
	var value struct {
		status, _ uint32
		number    int64
	}
	const large = 0x400
	if got := call("PdhGetFormattedCounterValue", counter, large, 0, uintptr(unsafe.Pointer(&value))); got != 0 || value.number != 4<<30 {
		t.Errorf("value: %#x, %d", got, value.number)
	}
	if got := call("PdhCloseQuery", query); got != 0 {
		t.Errorf("close: %#x", got)
	}
}
