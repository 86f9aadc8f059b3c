package ipstack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/iphelper"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

const (
	uplink   = "vEthernet (Ethernet)"
	pods     = "vEthernet (cbr0)"
	services = "vEthernet (KubeProxySwitch)"
)

// fresh returns a host with an l2bridge network, whose gateway the host has, one pod, and a switch with a service address. Interfaces have Windows'
// defaults.
func fresh(t *testing.T) (*sim.World, Surroundings) {
	t.Helper()
	w := sim.New(20348)
	call := func(function string, args ...string) string {
		t.Helper()
		result, value, _ := w.HNS.Call(function, args)
		if result != 0 {
			t.Fatalf("%s: %#x", function, uint32(result))
		}
		return value
	}
	const none = "00000000-0000-0000-0000-000000000000"
	network := call("HcnCreateNetwork", none, `{"Name":"cbr0","Type":"L2Bridge","Ipams":[{"Subnets":[{"IpAddressPrefix":"10.244.1.0/24","Flags":1,`+
		`"Routes":[{"NextHop":"10.244.1.2","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2}}`)
	for _, e := range []struct{ addr, system, policies string }{
		{"10.244.1.2", "Host", ""},
		{"10.244.1.10", "Container", `,"Policies":[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.244.0.0/16","10.96.0.0/12"]}},{"Type":"SDNRoute","Settings":{"DestinationPrefix":"10.96.0.0/12","NeedEncap":true}}]`},
	} {
		call("HcnCreateEndpoint", network, none, fmt.Sprintf(`{"Name":"cbr0","SchemaVersion":{"Major":2},"IpConfigurations":[{"IpAddress":%q,"PrefixLength":24}]%s}`, e.addr, e.policies))
		list := w.HNS.Snapshot().Endpoints
		call("HNSCall", "POST", "/endpoints/"+list[len(list)-1].ID+"/attach", fmt.Sprintf(`{"ContainerId":"c","SystemType":%q,"CompartmentId":1}`, e.system))
	}
	call("HNSCall", "POST", "/networks/", `{"Name":"KubeProxySwitch","Type":"Internal"}`)
	w.IPHelper.Assign(services, netip.MustParsePrefix("10.96.0.10/32"), true)
	rule := `advfirewall firewall add rule name=proxy dir=in action=allow program="C:\k\proxy.exe"`
	if output, code := w.Netsh.Run([]string{"-f", "script"}, &rule); code != 0 {
		t.Fatal(output)
	}
	return w, Surroundings{Build: 20348, Node: netip.MustParseAddr("192.168.1.11"), Adapter: uplink, Gateway: netip.MustParseAddr("192.168.1.1"), Relay: "proxy.exe",
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/12")},
		Fronts:  []Front{{Name: "web", Addr: netip.MustParseAddrPort("10.96.0.10:80"), Targets: []netip.AddrPort{netip.MustParseAddrPort("192.168.1.20:80")}}}}
}

// TestRules changes one thing at a time: each rule decides, and gives its reason.
func TestRules(t *testing.T) {
	on := func(name string, change func(*iphelper.Settings)) func(*sim.World) {
		return func(w *sim.World) { w.IPHelper.Change(name, false, change) }
	}
	forwards := func(s *iphelper.Settings) { s.Forwarding = true }
	weakSend := func(s *iphelper.Settings) { s.WeakSend = true }
	weakReceive := func(s *iphelper.Settings) { s.WeakReceive = true }
	script := func(line string) func(*sim.World) {
		return func(w *sim.World) { w.Netsh.Run([]string{"-f", "script"}, &line) }
	}
	web, rdp := netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("10.96.0.10:3389")
	for _, c := range []struct {
		name    string
		to      netip.AddrPort
		changes []func(*sim.World)
		want    Verdict
		hop     string
	}{
		{"as Windows leaves it", web, nil, No, "is a strong host, neither receives as a weak host nor forwards"},
		{"received, the answer does not leave", web, []func(*sim.World){on(pods, forwards)}, No, "the answer does not leave"},
		{"forwarding on both", web, []func(*sim.World){on(pods, forwards), on(services, forwards)}, Yes, "the answer from 10.96.0.10 leaves"},
		{"weak hosts", web, []func(*sim.World){on(pods, weakReceive), on(services, weakSend)}, Yes, "weak host receive"},
		{"the wrong way round", web, []func(*sim.World){on(pods, weakSend), on(services, weakReceive)}, No, "is a strong host"},
		{"no rule of the firewall", web, []func(*sim.World){on(pods, forwards), on(services, forwards), script("advfirewall firewall delete rule name=proxy")}, No, "no rule that lets proxy.exe receive"},
		{"nothing listens", netip.MustParseAddrPort("10.96.0.10:81"), []func(*sim.World){on(pods, forwards)}, No, "nothing listens"},
		{"Remote Desktop", rdp, []func(*sim.World){on(pods, forwards), on(services, forwards)}, Yes, "TermService has it"},
		{"Remote Desktop, blocked", rdp, []func(*sim.World){on(pods, forwards), on(services, forwards),
			script(`advfirewall firewall add rule name=wall dir=in action=block service=TermService localip=10.96.0.0/12`)}, No, `blocks TermService there: rule "wall"`},
		{"blocked elsewhere", rdp, []func(*sim.World){on(pods, forwards), on(services, forwards),
			script(`advfirewall firewall add rule name=wall dir=in action=block service=TermService localip=10.0.0.1-10.0.0.9`)}, Yes, "TermService has it"},
		{"no Service has the address", netip.MustParseAddrPort("10.96.0.99:80"), []func(*sim.World){on(pods, forwards)}, No, "nothing out there has 10.96.0.99"},
	} {
		w, around := fresh(t)
		for _, change := range c.changes {
			change(w)
		}
		a := Of(w, around).Ask(Question{From: Pod, To: c.to})
		if hops := strings.Join(a.Hops, "\n"); a.Verdict != c.want || !strings.Contains(hops, c.hop) {
			t.Errorf("%s: %s, want %s with %q:\n%s", c.name, a.Verdict, c.want, c.hop, hops)
		}
	}
}

// TestWayOut: a default route that leads to the host itself cuts off the Internet if its metric is lower than the real one's. With an equal
// metric the answer is unknown.
func TestWayOut(t *testing.T) {
	all := netip.MustParsePrefix("0.0.0.0/0")
	for _, c := range []struct {
		metric uint32 // of a default route through the pods' gateway; the host's own has 256
		want   Verdict
	}{{0, No}, {256, Unknown}, {500, Yes}} {
		w, around := fresh(t)
		w.IPHelper.Lead(pods, all, netip.MustParseAddr("10.244.1.2"), c.metric)
		if a := Of(w, around).Ask(Question{From: Self, To: resolver}); a.Verdict != c.want {
			t.Errorf("metric %d: %s, want %s: %q", c.metric, a.Verdict, c.want, a.Hops)
		}
	}
}
