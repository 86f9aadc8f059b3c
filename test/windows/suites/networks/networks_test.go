// Package networks tests the code that creates Windows pod networks, under Wine on the simulators: a second comparison or a restart changes
// nothing, on each build and however HNS answers, and foreign objects stay.
package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hns"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

var builds = rig.Wanted(17763, 20348, 26100)

// networks are the modes and kinds, with the HNS network that Docker creates for Docker's own kinds.
var networks = []struct {
	mode   network.Mode
	kind   network.WindowsNetwork
	docker string
}{
	{network.HostGateway, network.L2Bridge, ""},
	{network.Overlay, "", ""},
	{network.HostGateway, network.Transparent, `{"Name":"winkube","Type":"Transparent","NetworkAdapterName":"ADAPTER","Subnets":[{"AddressPrefix":"10.244.1.0/24","GatewayAddress":"10.244.1.1"}]}`},
	{network.HostGateway, network.NAT, `{"Name":"winkube","Type":"NAT","Subnets":[{"AddressPrefix":"10.244.1.0/24","GatewayAddress":"10.244.1.1"}]}`},
}

func TestAgain(t *testing.T) {
	prefixes := map[int]*rig.Prefix{}
	for _, build := range builds {
		prefixes[build] = rig.Test(t, build)
	}
	exe := rig.Counted(t, "./test/windows/suites/networks/maker", "maker.exe")
	for _, build := range builds {
		for _, n := range networks {
			for _, answers := range []hns.Options{{}, {DropsNewer: true, Contrary: 3}} {
				t.Run(fmt.Sprintf("%d/%s%s/drops=%t", build, n.mode, n.kind, answers.DropsNewer), func(t *testing.T) {
					answers.Build = build
					again(t, prefixes[build], exe, answers, n.mode, n.kind, n.docker)
				})
			}
		}
	}
}

// again creates one network, then lets another kubelet compare it twice.
func again(t *testing.T, p *rig.Prefix, exe string, answers hns.Options, mode network.Mode, kind network.WindowsNetwork, docker string) {
	nodeIP, _ := rig.HostAddress(t)
	adapter := rig.HostAdapter(t)
	answers.Adapters = []string{adapter}
	w := sim.NewWith(answers)
	w.Address = netip.MustParseAddr(nodeIP)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(l)
	t.Cleanup(w.Close)
	if err := w.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	before := plant(t, w)
	const file = `C:\windows\temp\engine.json`
	for _, left := range []string{file, file + ".uplink"} { // from the previous network
		if err := os.Remove(p.Path(left)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if docker != "" {
		call(t, w, "HNSCall", "POST", "/networks/", strings.ReplaceAll(docker, "ADAPTER", adapter))
		dockerHas(t, p.Path(file), answers.Build, mode, kind)
	}
	run := func(comparisons int) {
		said, err := p.Finish(p.Command(t.Context(), exe, fmt.Sprintf("--mode=%s", mode), fmt.Sprintf("--kind=%s", kind), "--node-ip="+nodeIP, "--interface="+adapter, "--engine="+file,
			fmt.Sprintf("--build=%d", answers.Build), fmt.Sprintf("--comparisons=%d", comparisons)))
		if err != nil || comparisons > 1 && strings.Contains(said.Stderr, "differs from the desired state") {
			t.Fatalf("%v: %s\nHNS:\n%s\ncalls:\n%s", err, said, w.HNS, w.Log)
		}
	}
	run(1)
	state, log := w.String(), len(w.Log.Calls())
	if !strings.Contains(state, "10.244.1.0/24") {
		t.Errorf("there is no network:\n%s", state)
	}
	run(2)
	if !slices.ContainsFunc(w.Log.Calls()[log:], func(c calls.Call) bool { return c.Service == "hns" }) && docker == "" {
		t.Error("compared again, it does not look at HNS")
	}
	if changes := changing(w.Log.Calls()[log:]); len(changes) > 0 || w.String() != state {
		t.Errorf("compared again, it changes\n%s\nfrom\n%s\nto\n%s", strings.Join(changes, "\n"), state, w)
	}
	for _, line := range before {
		if !strings.Contains(w.String(), line) {
			t.Errorf("%q of others is gone:\n%s", line, w)
		}
	}
	for _, unknown := range w.Log.Unknown() {
		t.Errorf("unknown: %s", unknown)
	}
}

// plant creates foreign objects through HNS v1: a network, an endpoint and a load balancer. It returns how HNS prints them.
func plant(t *testing.T, w *sim.World) []string {
	t.Helper()
	text := call(t, w, "HNSCall", "POST", "/networks/", `{"Name":"theirs","Type":"NAT","Subnets":[{"AddressPrefix":"172.20.0.0/16","GatewayAddress":"172.20.0.1"}]}`)
	id := func() string {
		var made struct{ Output struct{ ID string } }
		if err := json.Unmarshal([]byte(text), &made); err != nil {
			t.Fatal(err)
		}
		return made.Output.ID
	}
	text = call(t, w, "HNSCall", "POST", "/endpoints/", fmt.Sprintf(`{"Name":"winkube","VirtualNetwork":%q,"IPAddress":"172.20.0.9"}`, id()))
	call(t, w, "HNSCall", "POST", "/policylists/", fmt.Sprintf(`{"References":["/endpoints/%s"],"Policies":[{"Type":"ELB","VIPs":["10.97.0.1"],"Protocol":6,"InternalPort":80,"ExternalPort":80}]}`, id()))
	return strings.Split(strings.TrimSpace(w.HNS.String()), "\n")
}

func call(t *testing.T, w *sim.World, function string, args ...string) string {
	t.Helper()
	result, value, record := w.HNS.Call(function, args)
	if result != 0 {
		t.Fatalf("%s %q: %s", function, args, record)
	}
	return value
}

// dockerHas writes the network that the kubelet plans into the engine's file.
func dockerHas(t *testing.T, path string, build int, mode network.Mode, kind network.WindowsNetwork) {
	t.Helper()
	s, err := network.Plan(network.Config{Mode: mode, Windows: kind, Adapter: "Ethernet", Platform: pod.Platform{OS: "windows", Build: build, SharedNetwork: true},
		NodeIPs: []netip.Addr{netip.MustParseAddr("192.168.1.3")}}, network.Facts{PodCIDRs: []string{"10.244.1.0/24"}})
	if err != nil || s.Network == nil {
		t.Fatalf("%s, %v", s, err)
	}
	text, err := json.Marshal([]pod.EngineNetwork{*s.Network})
	if err == nil {
		err = os.WriteFile(path, text, 0o666)
	}
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// changing returns the calls that change something.
func changing(list []calls.Call) (out []string) {
	reads := []string{"HcnEnumerate", "HcnOpen", "HcnQuery", "HcnClose", "HcnRegister", "Get", "Initialize", "Notify", "Convert", "show", "request"}
	for _, c := range list {
		read := c.Function == "HNSCall" && len(c.Args) > 0 && c.Args[0] == "GET" || slices.ContainsFunc(reads, func(prefix string) bool { return strings.HasPrefix(c.Function, prefix) })
		if !read {
			out = append(out, c.String())
		}
	}
	return out
}
