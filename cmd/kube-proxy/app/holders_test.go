package app

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

func TestServerAddress(t *testing.T) {
	for server, want := range map[string]string{
		"https://10.1.0.5:6443":       "10.1.0.5:6443",
		"https://10.1.0.5":            "10.1.0.5:443",
		"http://10.1.0.5/api":         "10.1.0.5:80",
		"https://[fd00::5]:6443":      "[fd00::5]:6443",
		"10.1.0.5:6443":               "10.1.0.5:6443",
		"https://[::ffff:10.1.0.5]:1": "10.1.0.5:1",
		"https://127.0.0.1:6443":      "invalid AddrPort",
		"https://api.example.com":     "invalid AddrPort",
		"https://10.1.0.5:99999":      "invalid AddrPort",
		"":                            "invalid AddrPort",
	} {
		if got := serverAddress(server).String(); got != want {
			t.Errorf("%q: %s, want %s", server, got, want)
		}
	}
}

// TestHolders: Services cannot have the addresses and ports on the command line: the pods' range, the API server, the
// proxy's own ports.
func TestHolders(t *testing.T) {
	s := &settings{clusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, nodePorts: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}
	s.config.Healthz, s.config.Metrics = netip.MustParseAddrPort("0.0.0.0:20256"), netip.MustParseAddrPort("127.0.0.1:20249")
	h := s.holders("https://10.1.0.5:6443")
	if got, want := h.String(), "pod ranges: 10.244.0.0/16\nAPI servers: 10.1.0.5:6443\n"; got != want {
		t.Errorf("holders are\n%s\nwant\n%s", got, want)
	}
	if got, want := fmt.Sprint(h.Ports, h.NodePortAddresses), "[{20256 TCP the proxy} {20249 TCP the proxy}] [10.1.0.0/24]"; got != want {
		t.Errorf("ports are %s, want %s", got, want)
	}
}

// TestHostOf: this host's addresses exclude the proxy's, and a failed read is an error.
func TestHostOf(t *testing.T) {
	addresses := relaytest.NewAddresses(netip.MustParseAddr("10.1.0.11"))
	got, err := hostOf(addresses)()
	if err != nil {
		t.Skipf("the routes of this host cannot be read: %v", err)
	}
	if fmt.Sprint(got.Addresses) != "[10.1.0.11]" {
		t.Errorf("addresses are %v", got.Addresses)
	}
	for _, hop := range got.NextHops {
		if hop.IsUnspecified() || hop.IsLinkLocalUnicast() {
			t.Errorf("next hop %s", hop)
		}
	}
}

// TestTableRefuses: `proxy table` decides as the proxy does, with the Nodes and ServiceCIDRs of the manifest.
func TestTableRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
---
apiVersion: v1
kind: Service
metadata: {namespace: aaa, name: a}
spec: {clusterIP: 10.96.7.7, externalIPs: [10.96.0.10, 10.1.0.12, 203.0.113.1], ports: [{port: 80}]}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 10.1.0.12}, {type: ExternalIP, address: 10.96.0.1}]}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := newManifest()
	if err == nil {
		err = m.read(file, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	tracker := m.tracker(proxy.NodeInfo{Name: "n1"})
	if text := tracker.Table().String(); strings.Count(text, "ExternalIP") != 1 || !strings.Contains(text, "203.0.113.1:80") {
		t.Errorf("the table is\n%s", text)
	}
	want := []string{"10.96.0.10 is in 10.96.0.0/16, the range of cluster IPs", "10.1.0.12 is an address of Node n2"}
	for i, p := range tracker.AllProblems() {
		if i >= len(want) || !strings.Contains(p.Message, want[i]) {
			t.Errorf("problem %s", p)
		}
	}
	if text := tracker.Disbelieved("n2"); !strings.Contains(text, "10.96.0.1 is in 10.96.0.0/16") {
		t.Errorf("of the Node is said %q", text)
	}
}
