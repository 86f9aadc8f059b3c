package balance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/kubeproxy"
	netshpkg "github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/pkg/proxy/portproxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/test/windows/simulators/iphelper"
	"github.com/winkube/winkube/test/windows/simulators/ipstack"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// The cluster in which the questions are asked.
var (
	reachNode    = netip.MustParseAddr("192.168.1.11")
	reachPod     = netip.MustParseAddr("10.244.1.10")
	reachLocal   = netip.MustParseAddrPort("10.244.1.11:8080")
	reachRemote  = netip.MustParseAddrPort("10.244.2.7:8080")
	reachAPI     = netip.MustParseAddrPort("192.168.1.10:6443")
	reachService = netip.MustParsePrefix("10.96.0.0/12")
)

// route returns one front of the table that all hosts serve.
func route(name string, kind proxy.Kind, protocol v1.Protocol, front string, to netip.AddrPort) proxy.Route {
	return proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: name}, Port: strings.ToLower(string(protocol))}, Kind: kind, Protocol: protocol,
		Front: netip.MustParseAddrPort(front), Backends: []proxy.Endpoint{{Addr: to, Local: to == reachLocal}}}
}

var reachTable = &proxy.Table{Routes: []proxy.Route{
	route("API", proxy.ClusterIP, v1.ProtocolTCP, "10.96.0.1:443", reachAPI),
	route("DNS", proxy.ClusterIP, v1.ProtocolTCP, "10.96.0.10:53", netip.MustParseAddrPort("10.244.2.53:53")),
	route("DNS", proxy.ClusterIP, v1.ProtocolUDP, "10.96.0.10:53", netip.MustParseAddrPort("10.244.2.53:53")),
	route("cluster IP, endpoint elsewhere", proxy.ClusterIP, v1.ProtocolTCP, "10.96.0.21:80", reachRemote),
	route("cluster IP, endpoint here", proxy.ClusterIP, v1.ProtocolTCP, "10.96.0.20:80", reachLocal),
	route("external IP", proxy.ExternalIP, v1.ProtocolTCP, "203.0.113.9:80", reachRemote),
	route("node port", proxy.NodePort, v1.ProtocolTCP, "0.0.0.0:30080", reachRemote),
}}

// reachHost is a simulated Windows node.
type reachHost struct {
	t     *testing.T
	world *sim.World
	build int
	kind  network.WindowsNetwork
	state network.State
	own   string // the adapter with the node's address
}

func (h *reachHost) v1(method, path string, request any) (id string) {
	h.t.Helper()
	result, value, _ := h.world.HNS.Call("HNSCall", []string{method, path, text(request)})
	var out struct {
		Success bool
		Error   string
		Output  struct{ ID string }
	}
	if err := json.Unmarshal([]byte(value), &out); result != 0 || err != nil || !out.Success {
		h.t.Fatalf("%s %s: HRESULT %#x: %s %v", method, path, uint32(result), value, err)
	}
	return out.Output.ID
}

// newReachHost creates the pods' network that network.Plan returns: it does to the simulators what pkg/hns, the engine and hostnet do on
// Windows.
func newReachHost(t *testing.T, build int, kind network.WindowsNetwork) *reachHost {
	t.Helper()
	h := &reachHost{t: t, world: sim.New(build, "Ethernet"), build: build, kind: kind, own: "vEthernet (Ethernet)"}
	h.world.Address = reachNode
	cfg := network.Config{Mode: network.HostGateway, Windows: kind, Platform: pod.Platform{OS: "windows", Build: build, SharedNetwork: build >= 17763},
		NodeIPs: []netip.Addr{reachNode}, Services: []netip.Prefix{reachService}, NonMasquerade: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Name: "pods"}
	if kind == "overlay" {
		cfg.Mode, cfg.Windows = network.Overlay, ""
	}
	var err error
	if h.state, err = network.Plan(cfg, network.Facts{PodCIDRs: []string{"10.244.1.0/24"}, Adapter: "Ethernet"}); err != nil {
		t.Fatal(err)
	}
	if build < 17763 { // like Docker there
		h.v1("POST", "/networks/", map[string]any{"Name": "nat", "Type": "NAT", "Subnets": []any{map[string]string{"AddressPrefix": "172.20.0.0/16", "GatewayAddress": "172.20.0.1"}}})
		h.own = "vEthernet (HNSTransparent)"
	} else {
		h.v1("POST", "/networks/", map[string]any{"Name": "KubeProxySwitch", "Type": "Internal"})
	}
	if kind == network.NAT {
		h.own = "Ethernet" // without a virtual switch
		h.world.IPHelper.SetAdapter(h.own, true, nil)
	}
	h.connect()
	return h
}

// connect creates the network, the host's endpoint in it and two pods.
func (h *reachHost) connect() {
	var exceptions []string
	gateway, kind := "10.244.1.1", "L2Bridge"
	subnet, policies, endpoint := map[string]any{}, []any{}, []any{}
	switch s := h.state; {
	case s.Overlay != nil:
		kind = "Overlay"
		subnet["Policies"] = []any{policyOf("VSID", map[string]any{"IsolationId": s.Overlay.VNI})}
		policies = append(policies, policyOf("HostRoute", map[string]any{}), policyOf("RemoteSubnetRoute", map[string]any{"DestinationPrefix": "10.244.2.0/24", "IsolationId": s.Overlay.VNI,
			"ProviderAddress": "192.168.1.12", "DistributedRouterMacAddress": "00-15-5D-00-00-02"}))
		for _, p := range s.Overlay.Keep {
			exceptions = append(exceptions, p.String())
		}
		endpoint = append(endpoint, policyOf("ProviderAddress", map[string]any{"ProviderAddress": s.Overlay.Provider.String()}), outboundNAT(exceptions))
		endpoint = append(endpoint, routePolicies(s.Overlay.Services)...)
	case s.Bridge != nil:
		gateway = s.Bridge.Gateway.String()
		if s.Bridge.Router.IsValid() { // the kubelet creates the pods' endpoints; each has the host's as gateway
			gateway = s.Bridge.Router.String()
			for _, p := range s.Bridge.Keep {
				exceptions = append(exceptions, p.String())
			}
		} else {
			subnet["Flags"] = 1
			for key, value := range s.Network.Options {
				if strings.HasSuffix(key, "outboundnat_exceptions") {
					exceptions = strings.Split(value, ",")
				}
			}
		}
		endpoint = append([]any{outboundNAT(exceptions)}, routePolicies(s.Bridge.Routes)...)
	default:
		kind = map[network.WindowsNetwork]string{network.Transparent: "Transparent", network.NAT: "NAT"}[h.kind]
		gateway = s.Network.Gateways[0].String()
	}
	subnet["IpAddressPrefix"], subnet["Routes"] = "10.244.1.0/24", []any{map[string]string{"NextHop": gateway, "DestinationPrefix": "0.0.0.0/0"}}
	id := h.network(kind, gateway, subnet, policies)
	if h.state.Bridge != nil {
		own := h.v1("POST", "/endpoints/", map[string]any{"Name": "pods", "VirtualNetwork": id, "IPAddress": h.state.Bridge.Gateway.String(), "PrefixLength": 24})
		h.v1("POST", "/endpoints/"+own+"/attach", map[string]any{"CompartmentId": 1, "SystemType": "Host"})
	}
	for i, addr := range []netip.Addr{reachPod, reachLocal.Addr()} {
		h.pod(id, addr, endpoint, fmt.Sprintf("pod%d", i))
	}
	// What hostnet does with the State follows.
	for _, g := range h.state.Gateways {
		if interfaces, _ := h.world.IPHelper.Snapshot(); !slices.ContainsFunc(interfaces, func(i iphelper.Interface) bool { return slices.Contains(i.Addresses, g.Address) }) {
			h.world.IPHelper.Assign(g.Interface, g.Address, false)
		}
		h.world.IPHelper.Change(g.Interface, false, func(s *iphelper.Settings) { s.Forwarding = true })
	}
	if len(h.state.Forward) > 0 {
		h.world.IPHelper.Change(h.own, false, func(s *iphelper.Settings) { s.Forwarding = true })
	}
}

func policyOf(kind string, settings map[string]any) any {
	return map[string]any{"Type": kind, "Settings": settings}
}

func outboundNAT(exceptions []string) any {
	return policyOf("OutBoundNAT", map[string]any{"Exceptions": exceptions})
}

func routePolicies(prefixes []netip.Prefix) (out []any) {
	for _, p := range prefixes {
		out = append(out, policyOf("SDNRoute", map[string]any{"DestinationPrefix": p.String(), "NeedEncap": true}))
	}
	return out
}

func (h *reachHost) client() *client { return &client{HNS: h.world.HNS, log: h.world.Log} }

func (h *reachHost) network(kind, gateway string, subnet map[string]any, policies []any) string {
	if h.build < 17763 {
		return h.v1("POST", "/networks/", map[string]any{"Name": "pods", "Type": kind, "Subnets": []any{map[string]string{"AddressPrefix": "10.244.1.0/24", "GatewayAddress": gateway}}})
	}
	id, err := h.client().create("Network", none, text(map[string]any{"Name": "pods", "Type": kind, "SchemaVersion": map[string]int{"Major": 2}, "Policies": policies,
		"Ipams": []any{map[string]any{"Type": "Static", "Subnets": []any{subnet}}}}))
	if err != nil {
		h.t.Fatal(err)
	}
	return id.String()
}

func (h *reachHost) pod(network string, addr netip.Addr, policies []any, container string) {
	var id string
	if h.build < 17763 {
		id = h.v1("POST", "/endpoints/", map[string]any{"VirtualNetwork": network, "IPAddress": addr.String(), "PrefixLength": 24})
	} else {
		c := h.client()
		handle, err := c.call("HcnOpenNetwork", network)
		settings := map[string]any{"HostComputeNetwork": network, "SchemaVersion": map[string]int{"Major": 2}, "Policies": policies,
			"IpConfigurations": []any{map[string]any{"IpAddress": addr.String(), "PrefixLength": 24}}}
		if b := h.state.Bridge; b != nil && b.Router.IsValid() {
			settings["Routes"] = []any{map[string]string{"NextHop": b.Gateway.String(), "DestinationPrefix": "0.0.0.0/0"}}
		}
		if err == nil {
			var made hns.ID
			made, err = c.create("Endpoint", handle, none, text(settings))
			id = made.String()
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.v1("POST", "/endpoints/"+id+"/attach", map[string]any{"ContainerId": container, "SystemType": "Container"})
}

// proxyAdapter returns the adapter with the service addresses.
func (h *reachHost) proxyAdapter() string {
	if h.build < 17763 {
		return "vEthernet (HNS Internal NIC)"
	}
	return "vEthernet (KubeProxySwitch)"
}

// Set and Host implement portproxy.Addresses like the package addresses on Windows.
func (h *reachHost) Set(_ context.Context, want []netip.Addr) (added []netip.Addr, err error) {
	for _, addr := range want {
		h.world.IPHelper.Assign(h.proxyAdapter(), netip.PrefixFrom(addr, addr.BitLen()), true)
	}
	if len(want) > 0 {
		h.world.IPHelper.Change(h.proxyAdapter(), false, func(s *iphelper.Settings) {
			next := addresses.HostModel{Forwarding: s.Forwarding, WeakSend: s.WeakSend, WeakReceive: s.WeakReceive}.Serving()
			s.Forwarding, s.WeakSend, s.WeakReceive = next.Forwarding, next.WeakSend, next.WeakReceive
		})
	}
	return want, nil
}

func (h *reachHost) Host() ([]netip.Addr, error) { return []netip.Addr{reachNode}, nil }

// serve lets a back end serve the table, and the relay the rest.
func (h *reachHost) serve(backEnd string, dsr bool) ipstack.Surroundings {
	rest := proxytest.NewBackend()
	var b proxy.Backend = rest
	switch backEnd {
	case "portproxy":
		rules := portproxy.New(portproxy.Config{Netsh: &netsh{Netsh: h.world.Netsh, log: h.world.Log}, Addresses: h})
		b = kubeproxy.NewSplit(rules, rest, portproxy.Serves)
	case "hnslb":
		node := func() (netip.Addr, string) { return reachNode, nodeMAC }
		cfg := hnslb.Config{Client: h.client(), Network: "pods", Build: h.build, DSR: dsr, Overlay: h.state.Overlay != nil, Node: node}
		balancer := hnslb.New(cfg)
		b = kubeproxy.NewSplit(balancer, rest, balancer.Serves)
	}
	if err := b.Sync(h.t.Context(), reachTable, nil); err != nil {
		h.t.Fatal(err)
	}
	var held []netip.Addr
	out := ipstack.Surroundings{Build: h.build, Node: reachNode, Adapter: h.own, Gateway: netip.MustParseAddr("192.168.1.1"), API: reachAPI,
		Peer: netip.MustParseAddr("192.168.1.12"), Remote: reachRemote.Addr(), Pod: reachPod, Relay: "proxy.exe", SharedPorts: true,
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), reachService}}
	for _, r := range reachTable.Routes {
		out.Fronts = append(out.Fronts, ipstack.Front{Name: r.Service.Name, Addr: r.Front, UDP: r.Protocol == v1.ProtocolUDP, Outer: r.Kind == proxy.ExternalIP, Targets: []netip.AddrPort{r.Backends[0].Addr}})
		if _, relayed := rest.Route(r.Protocol, r.Front); relayed && !r.Front.Addr().IsUnspecified() {
			held = append(held, r.Front.Addr())
		}
	}
	if _, err := h.Set(h.t.Context(), held); err != nil {
		h.t.Fatal(err)
	}
	lines := []string{netshpkg.Allow{Name: "winkube kube-proxy", Program: `C:\k\proxy.exe`}.Add()}
	for _, server := range []netshpkg.Block{{Program: "System"}, {Service: "TermService"}, {Service: "RpcEptMapper"}} { // like the proxy's own rules
		server.Name, server.At = "winkube service addresses", []string{reachService.Masked().String(), "203.0.113.9"}
		if len(held) > 0 || backEnd == "portproxy" {
			lines = append(lines, server.Add())
		}
	}
	for _, line := range lines {
		if output, code := h.world.Netsh.Run([]string{"-f", "script"}, &line); code != 0 {
			h.t.Fatal(output)
		}
	}
	// The proxy's routes to pods on other nodes follow.
	if h.state.Overlay == nil {
		h.world.IPHelper.Lead(h.own, netip.MustParsePrefix("10.244.2.0/24"), out.Peer, 157)
	}
	return out
}

// TestReachHops shows every hop on the network and back end that a node has without flags.
func TestReachHops(t *testing.T) {
	h := newReachHost(t, 20348, network.L2Bridge)
	matches(t, "testdata/hops.golden", ipstack.Of(h.world, h.serve("relay", false)).Table(true))
}

// matches compares got with a golden file; -update rewrites the file.
func matches(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("answers differ from %s (-update writes them):\n%s", path, got)
	}
}

// TestReach asks what can be reached and what returns, for each network, back end and build. The answers are in testdata/reach.golden; builds and
// networks with equal answers share an entry.
func TestReach(t *testing.T) {
	type variant struct {
		build   int
		kind    network.WindowsNetwork
		backEnd string
		dsr     bool
	}
	var variants []variant
	for _, backEnd := range []string{"relay", "portproxy"} {
		variants = append(variants, variant{14393, network.Transparent, backEnd, false})
		for _, build := range []int{17763, 20348, 26100} {
			for _, kind := range []network.WindowsNetwork{network.L2Bridge, network.NAT, network.Transparent} {
				variants = append(variants, variant{build, kind, backEnd, false})
			}
		}
	}
	for _, build := range []int{17763, 20348, 26100} {
		for _, dsr := range []bool{false, true} {
			variants = append(variants, variant{build, network.L2Bridge, "hnslb", dsr}, variant{build, "overlay", "hnslb", dsr})
		}
	}
	of, order := map[string][]string{}, []string{}
	for _, v := range variants {
		h := newReachHost(t, v.build, v.kind)
		stack := ipstack.Of(h.world, h.serve(v.backEnd, v.dsr))
		got := stack.Table(false)
		name := fmt.Sprintf("%d %s %s", v.build, v.kind, v.backEnd)
		if v.dsr {
			name += " --enable-dsr"
		}
		if of[got] == nil {
			order = append(order, got)
		}
		of[got] = append(of[got], name)
		for line := range strings.Lines(got) {
			server := strings.Contains(line, "at the service address")
			if strings.Contains(line, ": no") && !strings.HasPrefix(line, " ") && !server && promised(v.build, string(v.kind), v.backEnd, line) {
				t.Errorf("%s: the documentation promises otherwise: %s", name, line)
			}
			if server && !strings.Contains(line, ": no") {
				t.Errorf("%s: a server of Windows answers in the Service's place: %s", name, line)
			}
		}
		if unknown := h.world.Log.Unknown(); len(unknown) > 0 {
			t.Errorf("%s: the simulators were asked for what they do not know: %v", name, unknown)
		}
	}
	var b strings.Builder
	for _, text := range order {
		fmt.Fprintf(&b, "== %s\n%s", strings.Join(of[text], "\n== "), text)
	}
	matches(t, "testdata/reach.golden", b.String())
}

// promised reports whether docs/guides promise that the answer to a question is yes.
func promised(build int, kind, backEnd, line string) bool {
	switch {
	case strings.HasPrefix(line, "host ->") && backEnd == "hnslb":
		return strings.Contains(line, "own address") || strings.Contains(line, "Internet")
	case kind == "nat" && strings.HasPrefix(line, "other node -> pod"), kind == "overlay" && strings.HasPrefix(line, "host -> pod of another node"):
		return false // the guides say so
	}
	return true
}
