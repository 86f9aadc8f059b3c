package network

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

var (
	onLinux   = pod.Platform{OS: "linux", SharedNetwork: true}
	onWindows = pod.Platform{OS: "windows", Build: 14393}

	onServer2022 = pod.Platform{OS: "windows", Build: 20348, SharedNetwork: true}
)

var nodeFour, nodeSix = netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd00:1::11")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.ReplaceAll(string(want), "\r\n", "\n"); got != w {
		t.Errorf("%s differs (run with -update to accept):\n--- got\n%s--- want\n%s", path, got, w)
	}
}

func printed(s State, err error) string {
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return s.String()
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// The example of the Windows pages: Lin01, Win01 and Win02 in the cluster CIDR 192.168.0.0/16.
func TestPlanSeeds(t *testing.T) {
	var b strings.Builder
	for _, host := range []struct {
		name, cidr string
		platform   pod.Platform
	}{{"Lin01", "192.168.0.0/24", onLinux}, {"Win01", "192.168.1.0/24", onWindows}, {"Win02", "192.168.2.0/24", onWindows}} {
		cfg := Config{Mode: HostGateway, Platform: host.platform, NonMasquerade: prefixes("192.168.0.0/16")}
		fmt.Fprintf(&b, "## %s\n%s", host.name, printed(Plan(cfg, Facts{PodCIDRs: []string{host.cidr}, EngineVersion: "1.12.2-cs2-ws-beta"})))
	}
	fmt.Fprintf(&b, "## Win01, CONTAINER_NETWORK=mynet\n%s", printed(Plan(Config{Mode: External, Platform: onWindows, External: "mynet"}, Facts{PodCIDRs: []string{"192.168.1.0/24"}})))
	golden(t, "seeds", b.String())
}

func TestPlan(t *testing.T) {
	one := []string{"10.244.1.0/24"}
	var b strings.Builder
	for _, c := range []struct {
		name  string
		cfg   Config
		facts Facts
	}{
		{"engine 20.10", Config{Mode: HostGateway, Platform: onLinux}, Facts{PodCIDRs: one, EngineVersion: "20.10.24+dfsg1"}},
		{"engine 28", Config{Mode: HostGateway, Platform: onLinux}, Facts{PodCIDRs: one, EngineVersion: "28.0.1"}},
		{"engine unknown, mode upstream", Config{Mode: Upstream, Platform: onLinux}, Facts{PodCIDRs: one, EngineVersion: ""}},
		{"dual stack", Config{Mode: HostGateway, Platform: onLinux, NonMasquerade: prefixes("10.0.0.0/8", "10.244.0.0/16")}, Facts{PodCIDRs: []string{"fd00:244:1::/64", "10.244.1.0/24"}, EngineVersion: "29.1.0"}},
		{"public range", Config{Mode: HostGateway, Platform: onLinux}, Facts{PodCIDRs: []string{"203.0.113.0/26"}, EngineVersion: "24.0.0"}},
		{"other name", Config{Mode: HostGateway, Platform: onLinux, Name: "pods"}, Facts{PodCIDRs: []string{"10.244.1.7/24"}, EngineVersion: "24.0.0"}},
		{"Server 2016", Config{Mode: HostGateway, Platform: onWindows, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one, Adapter: "vEthernet (HNSTransparent)"}},
		{"Server 2016, two cards", Config{Mode: HostGateway, Platform: onWindows, Adapter: "Ethernet 2", NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one}},
		{"Server 2016, l2bridge", Config{Mode: HostGateway, Platform: onWindows, Windows: L2Bridge}, Facts{PodCIDRs: one}},
		{"Server 2016, nat", Config{Mode: HostGateway, Platform: onWindows, Windows: NAT}, Facts{PodCIDRs: one}},
		{"Server 2022, as wincni's example", Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{netip.MustParseAddr("10.127.132.213")}, Services: prefixes("11.0.0.0/8"),
			NonMasquerade: prefixes("10.10.0.0/16", "10.127.132.128/25")}, Facts{PodCIDRs: []string{"10.10.187.64/26"}, Adapter: "Ethernet"}},
		{"Server 2019", Config{Mode: HostGateway, Platform: onServer2019, NodeIPs: []netip.Addr{nodeFour}, Services: prefixes("10.96.0.0/12")}, Facts{PodCIDRs: one, Adapter: "Ethernet"}},
		{"Server 2022, dual stack, after its first start", Config{Mode: Upstream, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour, nodeSix}},
			Facts{PodCIDRs: []string{"fd00:244:1::/64", "10.244.1.0/24"}, Adapter: "vEthernet (Ethernet 2)"}},
		{"Server 2022, transparent", Config{Mode: HostGateway, Platform: onServer2022, Windows: Transparent, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one, Adapter: "Ethernet"}},
		{"Server 2022, transparent, no adapter", Config{Mode: HostGateway, Platform: onServer2022, Windows: Transparent, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one}},
		{"Server 2022, nat", Config{Mode: HostGateway, Platform: onServer2022, Windows: NAT}, Facts{PodCIDRs: one}},
		{"Windows, IPv6 only", Config{Mode: HostGateway, Platform: onServer2022}, Facts{PodCIDRs: []string{"fd00:244:1::/64"}}},
		{"Windows, too small", Config{Mode: HostGateway, Platform: onServer2022}, Facts{PodCIDRs: []string{"10.244.1.0/30"}}},
		{"no pod CIDR", Config{Mode: HostGateway, Platform: onLinux}, Facts{}},
		{"external without name", Config{Mode: External}, Facts{}},
		{"unknown mode", Config{Mode: "underlay"}, Facts{}},
		{"overlay", Config{Mode: Overlay, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour, nodeSix}}, Facts{PodCIDRs: one, EngineVersion: "24.0.0", MTU: 1500}},
		{"overlay, dual stack, jumbo frames", Config{Mode: Overlay, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour, nodeSix}},
			Facts{PodCIDRs: []string{"10.244.1.0/24", "fd00:244:0:1::/64"}, MTU: 9000}},
		{"overlay, no address of the family", Config{Mode: Overlay, Platform: onLinux, NodeIPs: []netip.Addr{nodeSix}}, Facts{PodCIDRs: one}},
		{"overlay, Server 2016", Config{Mode: Overlay, Platform: onWindows, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one}},
		{"overlay, Server 2022, dual stack, after its first start", Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeSix, nodeFour}, Services: prefixes("10.96.0.0/16", "fd00:96::/112"),
			NonMasquerade: prefixes("10.244.0.0/16", "fd00:244::/56")}, Facts{PodCIDRs: []string{"fd00:244:1::/64", "10.244.1.0/24"}, Adapter: "vEthernet (Ethernet)"}},
		{"overlay, Server 2022, two cards", Config{Mode: Overlay, Platform: onServer2022, Adapter: "Ethernet 2", NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one, Adapter: "Ethernet"}},
		{"overlay, Server 2022, l2bridge too", Config{Mode: Overlay, Platform: onServer2022, Windows: L2Bridge, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one}},
		{"overlay, Server 2022, no address of the family", Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeSix}}, Facts{PodCIDRs: one}},
		{"overlay, Server 2022, too small", Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: []string{"10.244.1.0/30"}}},
		{"small frames", Config{Mode: HostGateway, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one, MTU: 1460}},
		{"interfaces of the kubelet", Config{Mode: HostGateway, Platform: onLinux, Interfaces: ByKubelet}, Facts{PodCIDRs: []string{"10.244.1.0/24", "fd00:244:1::/64"}, EngineVersion: "29.1.0"}},
		{"interfaces of the kubelet, overlay", Config{Mode: Overlay, Platform: onLinux, Interfaces: ByKubelet, NodeIPs: []netip.Addr{nodeFour}}, Facts{PodCIDRs: one, MTU: 9000}},
		{"unknown kind", Config{Mode: Upstream, Platform: onWindows, Windows: "l2tunnel"}, Facts{PodCIDRs: one, EngineVersion: ""}},
		{"bad CIDR", Config{Mode: HostGateway}, Facts{PodCIDRs: []string{"10.244.1.0"}, EngineVersion: ""}},
		{"too small", Config{Mode: HostGateway}, Facts{PodCIDRs: []string{"10.244.1.0/31"}, EngineVersion: ""}},
		{"two of a family", Config{Mode: HostGateway}, Facts{PodCIDRs: []string{"10.244.1.0/24", "10.244.2.0/24"}, EngineVersion: ""}},
	} {
		fmt.Fprintf(&b, "## %s\n%s", c.name, printed(Plan(c.cfg, c.facts)))
	}
	golden(t, "plan", b.String())
}

func FuzzPlan(f *testing.F) {
	f.Add("10.244.1.0/24", "20.10", "10.0.0.0/8")
	f.Add("::ffff:10.0.0.0/120", "28", "::/0")
	f.Fuzz(func(t *testing.T, cidr, version, other string) {
		cfg := Config{Mode: HostGateway, Platform: onLinux}
		if p, err := netip.ParsePrefix(other); err == nil {
			cfg.NonMasquerade = []netip.Prefix{p}
		}
		s, err := Plan(cfg, Facts{PodCIDRs: []string{cidr}, EngineVersion: version})
		if err != nil {
			return
		}
		for i, c := range s.Network.Subnets {
			if !c.Contains(s.Network.Gateways[i]) || c != c.Masked() {
				t.Fatalf("gateway %s of %s", s.Network.Gateways[i], c)
			}
			inside := false
			for _, p := range s.Rules[i].NonMasquerade {
				inside = inside || p.Contains(c.Addr()) && p.Bits() <= c.Bits()
			}
			if !inside {
				t.Fatalf("traffic in %s would be masqueraded: %v", c, s.Rules[i].NonMasquerade)
			}
		}
	})
}

// TestModes: each Mode is one row on each system, and New creates its Maker without touching anything.
func TestModes(t *testing.T) {
	for _, name := range []Mode{HostGateway, Upstream, Overlay, External, CNI} {
		for _, platform := range []pod.Platform{onLinux, onServer2022} {
			rows := 0
			for _, m := range modes {
				if m.name == name && (m.os == "" || m.os == platform.OS) {
					rows++
				}
			}
			r := newRig(t, Config{Mode: name, Platform: platform, External: "mynet", NodeIPs: []netip.Addr{nodeFour}})
			if rows != 1 || r.maker == nil || r.attacher == nil {
				t.Errorf("%s on %s has %d rows, the Maker %T and the Attacher %T", name, platform.OS, rows, r.maker, r.attacher)
			}
			if r.s.applied > 0 || r.e.made > 0 || len(r.w.networks) > 0 {
				t.Errorf("%s on %s: New touched the host", name, platform.OS)
			}
		}
	}
	if _, err := New(Config{Mode: HostGateway, Platform: onServer2022}, Parts{}); err == nil {
		t.Error("a Windows host without HNS was accepted")
	}
}
