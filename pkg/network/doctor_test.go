package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// healthy is a host on which all is as planned.
func healthy(t *testing.T, cfg Config, cidrs ...string) Symptoms {
	t.Helper()
	cfg.NodeIPs = []netip.Addr{nodeFour}
	state, err := Plan(cfg, Facts{PodCIDRs: cidrs, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	four := newIptables()
	for _, c := range chains(state.Rules) {
		for _, line := range append([]string{"*" + c.table}, c.diff(four.save(c.table))...) {
			if err := four.do(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := Symptoms{Config: cfg, State: state, Elevated: true, Admitted: true, Forwarding: map[string]bool{"ipv4": true},
		Saved: map[string]string{"iptables filter": four.save("filter"), "iptables nat": four.save("nat")},
		Surroundings: Surroundings{
			Links:  []Link{{Name: "eth0", Up: true, MTU: 1500, Addrs: prefixes("10.1.0.11/24"), Forwarding: true}},
			Routes: []HostRoute{{Dst: netip.MustParsePrefix("10.244.2.0/24"), Via: netip.MustParseAddr("10.1.0.12"), Link: "eth0", Ours: true}},
		}}
	if o := state.Overlay; o != nil {
		s.Overlay = hns.Network{Name: o.Name, Overlay: true, Subnet: o.Subnet, Remote: make([]hns.RemoteSubnet, 2)}
		s.Routes, s.Links[0].Forwarding = nil, false
	}
	if state.Network != nil {
		has := *state.Network
		has.Options = maps.Clone(has.Options)
		s.Networks = []pod.EngineNetwork{has, {Name: "bridge", Subnets: prefixes("172.17.0.0/16")}}
	}
	for _, g := range state.Gateways {
		s.Links = append(s.Links, Link{Name: g.Interface, Up: true, MTU: 1450, Addrs: []netip.Prefix{g.Address}, Forwarding: true})
		s.Routes = append(s.Routes, HostRoute{Dst: g.Address.Masked(), Link: g.Interface})
	}
	for _, d := range state.Devices {
		s.Links = append(s.Links, Link{Name: d.Name, Up: true, MTU: d.MTU, Addrs: []netip.Prefix{d.Address}, Tunnel: true})
	}
	return s
}

func TestDiagnose(t *testing.T) {
	gateway := Config{Mode: HostGateway, Platform: onLinux, NonMasquerade: prefixes("10.244.0.0/16")}
	overlay, windows := gateway, gateway
	overlay.Mode, windows.Platform = Overlay, onWindows
	tunnelled := overlay
	tunnelled.Platform = onServer2022
	var b strings.Builder
	for _, c := range []struct {
		name   string
		cfg    Config
		damage func(*Symptoms)
	}{
		{"host-gateway, healthy", gateway, func(*Symptoms) {}},
		{"overlay, healthy", overlay, func(*Symptoms) {}},
		{"Windows, healthy", windows, func(*Symptoms) {}},
		{"nothing runs", gateway, func(s *Symptoms) {
			s.Elevated, s.EngineErr, s.Forwarding, s.Links, s.Routes = false, errors.New("connection refused"), nil, nil, nil
			s.FilterErr = errors.New("iptables-save: program not found")
		}},
		{"no range", gateway, func(s *Symptoms) { s.State, _ = Plan(s.Config, Facts{}) }},
		{"Docker closed FORWARD", gateway, func(s *Symptoms) {
			s.Saved = map[string]string{"iptables filter": "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n"}
		}},
		{"ranges overlap", gateway, func(s *Symptoms) {
			s.Links = append(s.Links, Link{Name: "tun0", Addrs: prefixes("10.244.1.77/32")})
			s.Networks[1].Subnets = prefixes("10.244.0.0/16")
			s.Routes = append(s.Routes, HostRoute{Dst: netip.MustParsePrefix("10.244.1.128/25"), Via: netip.MustParseAddr("10.1.0.1"), Link: "eth0"})
		}},
		{"an old network", overlay, func(s *Symptoms) {
			delete(s.Networks[0].Options, "com.docker.network.driver.mtu")
			s.link(bridgeName).MTU, s.link(bridgeName).Addrs = 1500, nil
		}},
		{"other driver", gateway, func(s *Symptoms) { s.Networks[0].Driver = "macvlan" }},
		{"other range", gateway, func(s *Symptoms) { s.Networks[0].Subnets = prefixes("10.244.9.0/24") }},
		{"tunnel missing, filter by reverse path", overlay, func(s *Symptoms) { s.Links = s.Links[:2]; s.Links[0].Strict = true }},
		{"tunnel of others", overlay, func(s *Symptoms) { s.link(vxlan.DeviceName(true)).Tunnel = false }},
		{"tunnel down", overlay, func(s *Symptoms) { s.link(vxlan.DeviceName(true)).Up = false }},
		{"address of another host", gateway, func(s *Symptoms) { s.Links[0].Addrs = prefixes("10.1.0.99/24") }},
		{"Windows, no rule wanted", windows, func(s *Symptoms) { s.Admitted, s.NoRule = false, true }},
		{"Windows, overlay, healthy", tunnelled, func(*Symptoms) {}},
		{"Windows, overlay, not made yet", tunnelled, func(s *Symptoms) { s.Overlay, s.OverlayErr = hns.Network{}, fmt.Errorf("looking: %w", hns.ErrNotFound) }},
		{"Windows, overlay, HNS down", tunnelled, func(s *Symptoms) { s.Overlay, s.OverlayErr = hns.Network{}, hns.ErrDown }},
		{"Windows, overlay, of another range, alone", tunnelled, func(s *Symptoms) { s.Overlay.Subnet, s.Overlay.Remote = netip.MustParsePrefix("10.244.9.0/24"), nil }},
		{"Windows, faults", windows, func(s *Symptoms) {
			s.Admitted = false
			s.Stopped, s.Excluded, s.Unread = []string{"hns"}, [][2]int{{5357, 5357}, {10200, 10299}}, []string{"routes: access denied"}
			s.link(adapterOf("HNSTransparent")).Addrs, s.Links[0].Forwarding = nil, false
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
	external := healthy(t, Config{Mode: External, External: "mynet", Platform: onLinux})
	fmt.Fprintf(&b, "## external, missing\n")
	for _, f := range Diagnose(external) {
		b.WriteString(f.String())
	}
	external.Networks = []pod.EngineNetwork{{Name: "mynet"}}
	fmt.Fprintf(&b, "## external\n")
	for _, f := range Diagnose(external) {
		b.WriteString(f.String())
	}
	golden(t, "doctor", b.String())
}

func TestDiagnosePlugins(t *testing.T) {
	s := Symptoms{Config: Config{Mode: CNI, Platform: onLinux}, Plugins: `"lab" of /etc/cni/net.d/10-lab.conflist`}
	if got := fmt.Sprint(engineNetworks(s)); got != "[ok     there is a CNI network: \"lab\" of /etc/cni/net.d/10-lab.conflist\n]" {
		t.Error(got)
	}
	s.PluginErr = errors.New("/etc/cni/net.d has no network")
	if got := engineNetworks(s); len(got) != 1 || !got[0].Fault || got[0].What != "/etc/cni/net.d has no network" {
		t.Errorf("%+v", got)
	}
}

func TestParseExcluded(t *testing.T) {
	got := parseExcluded("\r\nProtocol tcp Port Exclusion Ranges\r\n\r\nStart Port    End Port\r\n----------    --------\r\n      5357        5357\r\n     50000       50059     *\r\n\r\n* - Administered port exclusions.\r\n 9 70000\r\n")
	if fmt.Sprint(got) != "[[5357 5357] [50000 50059]]" {
		t.Errorf("%v", got)
	}
}

func FuzzParseExcluded(f *testing.F) {
	f.Add("10 20")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range parseExcluded(text) {
			if e[0] < 1 || e[0] > e[1] || e[1] > 65535 {
				t.Fatal(e)
			}
		}
	})
}

// Reading this machine changes nothing and needs no rights.
func TestExamine(t *testing.T) {
	s := Symptoms{Config: Config{Mode: HostGateway, Platform: onLinux}}
	if err := NewHost().Examine(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Links) == 0 && len(s.Unread) == 0 {
		t.Error("no interfaces and no word about it")
	}
}

// TestAdapterName: --interface names an adapter that is there; else it is told which are.
func TestAdapterName(t *testing.T) {
	for name, faults := range map[string]int{"": 0, "eth0": 0, "Ethernet 7": 1} {
		s := healthy(t, Config{Mode: HostGateway, Platform: onLinux, NonMasquerade: prefixes("10.244.0.0/16")}, "10.244.1.0/24")
		s.Config.Adapter = name
		got := adapterName(s)
		if len(got) != faults || faults > 0 && (!strings.Contains(got[0].What, `no interface "Ethernet 7"`) || !strings.Contains(got[0].Mend, `"eth0"`)) {
			t.Errorf("%q: %+v", name, got)
		}
	}
}
