package doctor

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/firewalld"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/portblocks"
	"github.com/winkube/winkube/pkg/vxlan"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

var (
	onLinux      = pod.Platform{OS: "linux", SharedNetwork: true}
	onWindows    = pod.Platform{OS: "windows", Build: 14393}
	onServer2022 = pod.Platform{OS: "windows", Build: 20348, SharedNetwork: true}
	nodeFour     = netip.MustParseAddr("10.1.0.11")
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// filter is the output of iptables-save if the rules are correct.
func filter(rules []iptables.Rules) iptables.Saved {
	forward, masquerade := "*filter\n:WINKUBE-FORWARD - [0:0]\n", "*nat\n:WINKUBE-MASQ - [0:0]\n"
	for _, r := range rules {
		forward += fmt.Sprintf("-A FORWARD -j WINKUBE-FORWARD\n-A WINKUBE-FORWARD -s %s -j ACCEPT\n-A WINKUBE-FORWARD -d %[1]s -j ACCEPT\n", r.PodCIDR)
		masquerade += fmt.Sprintf("-A POSTROUTING -s %s -j WINKUBE-MASQ\n", r.PodCIDR)
		for _, p := range r.NonMasquerade {
			masquerade += fmt.Sprintf("-A WINKUBE-MASQ -d %s -j RETURN\n", p)
		}
		masquerade += "-A WINKUBE-MASQ -j MASQUERADE\n"
	}
	return iptables.Saved{"iptables filter": forward + "COMMIT\n", "iptables nat": masquerade + "COMMIT\n"}
}

// healthy is a host that matches the plan.
func healthy(t *testing.T, cfg network.Config, cidrs ...string) Symptoms {
	t.Helper()
	cfg.NodeIPs = []netip.Addr{nodeFour}
	state, err := network.Plan(cfg, network.Facts{PodCIDRs: cidrs, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	s := Symptoms{Config: cfg, State: state, Elevated: true, Windows: Windows{Admitted: true},
		Linux: Linux{Forwarding: map[string]bool{"ipv4": true}, Saved: filter(state.Rules)},
		Surroundings: network.Surroundings{
			Links:  []network.Link{{Name: "eth0", Up: true, MTU: 1500, Addrs: prefixes("10.1.0.11/24"), Forwarding: true}},
			Routes: []network.HostRoute{{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("10.1.0.12"), Link: "eth0", Ours: true}},
		}}
	if o := state.Overlay; o != nil {
		s.Own = hns.Network{Name: o.Name, Overlay: true, Subnet: o.Subnet, Remote: make([]hns.RemoteSubnet, 2)}
		s.Routes, s.Links[0].Forwarding = nil, false
	}
	if b := state.Bridge; b != nil && state.Network == nil {
		s.Own = hns.Network{Name: b.Name, Subnet: b.Subnet}
	}
	if state.Network != nil {
		has := *state.Network
		has.Options = maps.Clone(has.Options)
		s.Networks = []pod.EngineNetwork{has, {Name: "bridge", Subnets: prefixes("172.17.0.0/16")}}
	}
	for _, g := range state.Gateways {
		s.Links = append(s.Links, network.Link{Name: g.Interface, Up: true, MTU: 1450, Addrs: []netip.Prefix{g.Address}, Forwarding: true})
		s.Routes = append(s.Routes, network.HostRoute{Dst: g.Address.Masked(), Link: g.Interface})
	}
	for _, d := range state.Devices {
		s.Links = append(s.Links, network.Link{Name: d.Name, Up: true, MTU: d.MTU, Addrs: []netip.Prefix{d.Address}, Tunnel: true})
	}
	return s
}

// TestPortBlocks: the dynamic ports that HNS has left.
func TestPortBlocks(t *testing.T) {
	for _, c := range []struct {
		last  int // of the excluded ports
		fault bool
	}{{49151, false}, {64447, false}, {64511, true}, {65535, true}} {
		s := Symptoms{Config: network.Config{Mode: network.HostGateway, Platform: onServer2022}}
		s.Ports = portblocks.Ports{First: 49152, Count: 16384, Excluded: [][2]int{{49152, c.last}}}
		found := false
		for _, f := range Diagnose(s) {
			if strings.Contains(f.What, "blocks of 64 dynamic TCP ports") {
				if found = true; f.Fault != c.fault || f.Fault && !strings.Contains(f.Fix, "set dynamicport tcp") {
					t.Errorf("excluded up to %d: %s", c.last, f)
				}
			}
		}
		if !found {
			t.Errorf("excluded up to %d: nothing is said of dynamic ports", c.last)
		}
	}
}

// TestServiceAddresses: the interface with the service addresses, with the strong host model and as the proxy configures it.
func TestServiceAddresses(t *testing.T) {
	cfg := network.Config{Mode: network.HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}}
	for _, c := range []struct {
		link  network.Link
		fault bool
	}{{network.Link{Services: 2}, true}, {network.Link{Services: 2, WeakSend: true}, false}, {network.Link{Services: 2, Forwarding: true}, false}} {
		c.link.Name = "vEthernet (KubeProxySwitch)"
		var said []string
		for _, f := range Diagnose(Symptoms{Config: cfg, Surroundings: network.Surroundings{Links: []network.Link{c.link}}}) {
			if strings.Contains(f.What, "2 service addresses") {
				said = append(said, f.String())
				if f.Fault != c.fault || f.Fault && !strings.Contains(f.Fix, "weakhostsend=enabled") {
					t.Errorf("%+v: %s", c.link, f)
				}
			}
		}
		if len(said) != 1 {
			t.Errorf("%+v: %q", c.link, said)
		}
	}
}

func TestDiagnose(t *testing.T) {
	gateway := network.Config{Mode: network.HostGateway, Platform: onLinux, NonMasquerade: prefixes("10.244.0.0/16")}
	overlay, windows := gateway, gateway
	overlay.Mode, windows.Platform = network.Overlay, onWindows
	ours := overlay
	ours.Interfaces = network.ByKubelet
	port := func(mtu int) network.Link {
		return network.Link{Name: podlink.PortName("0123456789abcdef"), Up: true, MTU: mtu}
	}
	tunnelled := overlay
	tunnelled.Platform = onServer2022
	bridged := windows
	bridged.Platform.Build = 17763
	var b strings.Builder
	for _, c := range []struct {
		name   string
		cfg    network.Config
		damage func(*Symptoms)
	}{
		{"host-gateway, healthy", gateway, func(*Symptoms) {}},
		{"overlay, healthy", overlay, func(*Symptoms) {}},
		{"overlay, interfaces by the kubelet, no pods", ours, func(s *Symptoms) { s.Named("winkube0").MTU = 1500 }},
		{"overlay, interfaces by the kubelet, pods of before", ours, func(s *Symptoms) {
			s.Named("winkube0").MTU = 1450
			s.Links = append(s.Links, port(1450), port(1500))
		}},
		{"Windows, healthy", windows, func(*Symptoms) {}},
		{"nothing runs", gateway, func(s *Symptoms) {
			s.Elevated, s.EngineErr, s.Forwarding, s.Links, s.Routes = false, errors.New("connection refused"), nil, nil, nil
			s.FilterErr = errors.New("iptables-save: program not found")
		}},
		{"no range", gateway, func(s *Symptoms) { s.State, _ = network.Plan(s.Config, network.Facts{}) }},
		{"Docker closed FORWARD", gateway, func(s *Symptoms) {
			s.Saved = iptables.Saved{"iptables filter": "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"}
		}},
		{"firewalld trusts no pods of other nodes", gateway, func(s *Symptoms) { s.Firewalld.Runs = true }},
		{"firewalld trusts them", gateway, func(s *Symptoms) {
			s.Firewalld = firewalld.State{Runs: true, Sources: map[netip.Prefix]string{netip.MustParsePrefix("10.244.0.0/16"): "trusted"}}
		}},
		{"firewalld, Docker's policy", gateway, func(s *Symptoms) { s.Firewalld = firewalld.State{Runs: true, Docker: true} }},
		{"firewalld, interfaces by the kubelet", gateway, func(s *Symptoms) {
			s.Config.Interfaces = network.ByKubelet
			s.Firewalld = firewalld.State{Runs: true, Docker: true}
		}},
		{"ranges overlap", gateway, func(s *Symptoms) {
			s.Links = append(s.Links, network.Link{Name: "tun0", Addrs: prefixes("10.244.1.77/32")})
			s.Networks[1].Subnets = prefixes("10.244.0.0/16")
			s.Routes = append(s.Routes, network.HostRoute{Dst: netip.MustParsePrefix("10.244.1.128/25"), Via: netip.MustParseAddr("10.1.0.1"), Link: "eth0"})
		}},
		{"an old network", overlay, func(s *Symptoms) {
			delete(s.Networks[0].Options, "com.docker.network.driver.mtu")
			s.Named("winkube0").MTU, s.Named("winkube0").Addrs = 1500, nil
		}},
		{"other driver", gateway, func(s *Symptoms) { s.Networks[0].Driver = "macvlan" }},
		{"other range", gateway, func(s *Symptoms) { s.Networks[0].Subnets = prefixes("10.244.9.0/24") }},
		{"tunnel missing, filter by reverse path", overlay, func(s *Symptoms) { s.Links = s.Links[:2]; s.Links[0].Strict = true }},
		{"tunnel of others", overlay, func(s *Symptoms) { s.Named(vxlan.DeviceName(true)).Tunnel = false }},
		{"tunnel down", overlay, func(s *Symptoms) { s.Named(vxlan.DeviceName(true)).Up = false }},
		{"address of another host", gateway, func(s *Symptoms) { s.Links[0].Addrs = prefixes("10.1.0.99/24") }},
		{"Windows, no rule wanted", windows, func(s *Symptoms) { s.Admitted, s.NoRule = false, true }},
		{"Windows, programs at all addresses", windows, func(s *Symptoms) {
			s.Ports.First, s.Ports.Count = 49152, 16384
			s.Listeners = []Listener{{"TCP", 135, 900, "svchost.exe"}, {"TCP", 445, 4, "System"}, {"TCP", 3389, 1000, "svchost.exe"}, {"TCP", 5985, 4, "System"}, {"TCP", 8080, 77, ""},
				{"TCP", 9000, 0, ""}, {"TCP", 49664, 700, "lsass.exe"}, {"UDP", 123, 901, "svchost.exe"}, {"UDP", 5353, 901, "svchost.exe"}, {"UDP", 5353, 902, "svchost.exe"}, {"UDP", 50000, 901, "svchost.exe"}}
		}},
		{"Windows, overlay, healthy", tunnelled, func(*Symptoms) {}},
		{"Windows, overlay, not made yet", tunnelled, func(s *Symptoms) { s.Own, s.OwnErr = hns.Network{}, fmt.Errorf("looking: %w", hns.ErrNotFound) }},
		{"Windows, overlay, HNS down", tunnelled, func(s *Symptoms) { s.Own, s.OwnErr = hns.Network{}, hns.ErrDown }},
		{"Windows, overlay, of another range, alone", tunnelled, func(s *Symptoms) { s.Own.Subnet, s.Own.Remote = netip.MustParsePrefix("10.244.9.0/24"), nil }},
		{"Windows, own bridge, healthy", bridged, func(*Symptoms) {}},
		{"Windows, own bridge, not made yet", bridged, func(s *Symptoms) { s.Own, s.OwnErr = hns.Network{}, fmt.Errorf("looking: %w", hns.ErrNotFound) }},
		{"Windows, own bridge, larger packets than the way to other nodes takes", bridged, func(s *Symptoms) { s.Named(s.State.Gateways[0].Interface).MTU = 9000 }},
		{"Windows, faults", windows, func(s *Symptoms) {
			s.Admitted = false
			s.Stopped, s.Ports.Excluded, s.Unread = []string{"hns"}, [][2]int{{5357, 5357}, {10200, 10299}}, []string{"routes: access denied"}
			s.Named(network.AdapterOf("HNSTransparent")).Addrs, s.Links[0].Forwarding = nil, false
			s.Networks = s.Networks[1:]
		}},
	} {
		s := healthy(t, c.cfg, "10.244.1.0/24")
		c.damage(&s)
		fmt.Fprintf(&b, "## %s\n", c.name)
		for _, f := range Diagnose(s) {
			b.WriteString(f.String())
		}
	}
	external := healthy(t, network.Config{Mode: network.External, External: "mynet", Platform: onLinux})
	fmt.Fprintf(&b, "## external, missing\n")
	for _, f := range Diagnose(external) {
		b.WriteString(f.String())
	}
	external.Networks = []pod.EngineNetwork{{Name: "mynet"}}
	fmt.Fprintf(&b, "## external\n")
	for _, f := range Diagnose(external) {
		b.WriteString(f.String())
	}
	path := filepath.Join("testdata", "doctor.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || strings.ReplaceAll(string(want), "\r\n", "\n") != b.String() {
		t.Errorf("%s differs (run with -update to accept), %v:\n%s", path, err, b.String())
	}
}

func TestDiagnosePlugins(t *testing.T) {
	s := Symptoms{Config: network.Config{Mode: network.CNI, Platform: onLinux}, Plugins: `"lab" of /etc/cni/net.d/10-lab.conflist`}
	if got := fmt.Sprint(engineNetworks(s)); got != "[ok     there is a CNI network: \"lab\" of /etc/cni/net.d/10-lab.conflist\n]" {
		t.Error(got)
	}
	s.PluginErr = errors.New("/etc/cni/net.d has no network")
	if got := engineNetworks(s); len(got) != 1 || !got[0].Fault || got[0].What != "/etc/cni/net.d has no network" {
		t.Errorf("%+v", got)
	}
}

// Reading this machine changes nothing and needs no rights.
func TestExamine(t *testing.T) {
	s := Symptoms{Config: network.Config{Mode: network.HostGateway, Platform: onLinux}}
	if err := Examine(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Links) == 0 && len(s.Unread) == 0 {
		t.Error("no interfaces, and nothing is said to be unread")
	}
}

// TestAdapterName: --interface names an existing adapter; otherwise the finding lists the existing ones.
func TestAdapterName(t *testing.T) {
	for name, faults := range map[string]int{"": 0, "eth0": 0, "Ethernet 7": 1} {
		s := healthy(t, network.Config{Mode: network.HostGateway, Platform: onLinux, NonMasquerade: prefixes("10.244.0.0/16")}, "10.244.1.0/24")
		s.Config.Adapter = name
		got := adapterName(s)
		if len(got) != faults || faults > 0 && (!strings.Contains(got[0].What, `no interface "Ethernet 7"`) || !strings.Contains(got[0].Fix, `"eth0"`)) {
			t.Errorf("%q: %+v", name, got)
		}
	}
}
