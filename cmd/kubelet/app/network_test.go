package app

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

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

// networkCommand runs `kubelet network` with a command line.
func networkCommand(stdin, line string) string {
	var out bytes.Buffer
	c := newNetworkCommand(strings.NewReader(stdin), &out)
	c.SetArgs(strings.Fields(line))
	c.SilenceErrors, c.SilenceUsage = true, true
	if err := c.Execute(); err != nil {
		fmt.Fprintf(&out, "error: %v\n", err)
	}
	return out.String()
}

func TestNetworkRoutes(t *testing.T) {
	t.Setenv("CONTAINER_NETWORK", "")
	nodes, err := os.ReadFile("testdata/seeds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, line := range []string{
		"routes -f testdata/seeds.yaml",
		"routes -f - --form=generic --route-next-hop=pod-gateway",
		"routes -f - --form=ip-route --route-next-hop=pod-gateway --node=lin01 --interface=eth0",
		"routes -f - --form=route-add --route-next-hop=pod-gateway --node=win01 --interface=12",
		"routes -f - --form=route-add --route-next-hop=pod-gateway --node=win02",
		"routes -f - --form=bgp", "routes -f - --route-next-hop=north", "routes", "routes -f testdata/seeds.yaml --kubeconfig=x",
	} {
		fmt.Fprintf(&b, "$ kubelet network %s\n%s", line, networkCommand(string(nodes), line))
	}
	for _, input := range []string{"", "kind: Pod", "kind: [", `{"kind":"Node","metadata":{"name":"a"},"spec":{"podCIDR":"10.0.0.0/24"},"status":{"addresses":[{"type":"InternalIP","address":"10.1.0.1"}]}}`} {
		fmt.Fprintf(&b, "$ kubelet network routes -f - <<< '%s'\n%s", input, networkCommand(input, "routes -f - --form=generic"))
	}
	golden(t, "routes", b.String())
}

func TestNetworkPlan(t *testing.T) {
	t.Setenv("CONTAINER_NETWORK", "")
	var b strings.Builder
	for _, line := range []string{
		"plan --os=linux --pod-cidr=192.168.0.0/24 --cluster-cidr=192.168.0.0/16",
		"plan --os=windows --windows-build=14393 --pod-cidr=192.168.1.0/24",
		"plan --os=linux --network-mode=overlay --pod-cidr=10.244.1.0/24 --node-ip=10.1.0.11 --mtu=1500",
		"plan --os=linux --network-mode=overlay --pod-cidr=10.244.1.0/24",
		"plan --os=linux --network-mode=external",
		"plan --os=linux --pod-cidr=192.168.0.0/24 --pod-interfaces=engine",
		"plan --os=windows --pod-cidr=192.168.0.0/24 --pod-interfaces=kubelet",
		"plan --os=linux --network-mode=cni --pod-interfaces=kubelet",
		"plan --os=linux --pod-interfaces=router",
		"plan --os=beos", "plan --os=linux --cluster-cidr=x", "plan --os=linux --node-ip=x",
	} {
		fmt.Fprintf(&b, "$ kubelet network %s\n%s", line, networkCommand("", line))
	}
	golden(t, "plan", b.String())
}
