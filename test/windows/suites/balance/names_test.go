package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/test/windows/simulators/ipstack"
)

// known are the names that the cluster's DNS answers, example.com for all external ones.
var known = []string{"kubernetes.default.svc.cluster.local", "web.default.svc.cluster.local", "web.shop.svc.cluster.local", "example.com", "printer.corp.example"}

// asked are the names that a pod of namespace default asks for.
var asked = []string{"kubernetes", "web", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "web.shop.svc.cluster.local.", "nowhere", "printer", "example.com", "example.com."}

// namesPod is a pod of two containers in the namespace default, whose search list has a further domain.
func namesPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}, Spec: v1.PodSpec{DNSPolicy: v1.DNSClusterFirst, DNSConfig: &v1.PodDNSConfig{Searches: []string{"corp.example"}},
		Containers: []v1.Container{{Name: "first", Image: "i"}, {Name: "second", Image: "i"}}}}
}

// namesOf returns what each container of a pod resolves names with, by what the kubelet asks the engine for. On networks whose endpoints the kubelet
// makes, they have the search list too.
func namesOf(t *testing.T, h *reachHost) map[string]ipstack.Names {
	t.Helper()
	platform := pod.Platform{OS: "windows", Arch: "amd64", Build: h.build, SharedNetwork: h.build >= 17763}
	p, target := namesPod(), convert.Target{Platform: platform, Node: "win1"}
	cfg := start.Config{Platform: platform, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, ClusterDomain: "cluster.local",
		HostIPs: func() []netip.Addr { return []netip.Addr{reachNode} }}
	dns, err := cfg.DNS(p)
	if err != nil {
		t.Fatal(err)
	}
	box := &pod.SandboxInputs{Network: "pods", Hostname: "p", DNS: dns}
	endpoint := ipstack.Names{Gateway: h.kind == network.NAT}
	if h.state.Overlay != nil || h.state.Bridge != nil && h.state.Bridge.Router.IsValid() {
		box.Network, endpoint.Suffixes = "none", dns.Searches
	}
	owner := pod.Step{Action: pod.CreateSandbox, Sandbox: box}
	made, err := convert.Sandbox(p, owner, "pause", target)
	containers := p.Spec.Containers
	if !platform.SharedNetwork { // a pod has one container, which has the network
		containers = containers[:1]
		made, err = convert.Container(p, pod.Step{Action: pod.StartContainer, Kind: podspec.App, Container: "first", Inputs: &pod.Inputs{Sandbox: box}}, target)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range made.HostConfig.DNS { // the engine gives them to the endpoint
		endpoint.Servers = append(endpoint.Servers, netip.MustParseAddr(text))
	}
	out := map[string]ipstack.Names{}
	for _, c := range containers {
		if platform.SharedNetwork {
			made, err = convert.Container(p, pod.Step{Action: pod.StartContainer, Kind: podspec.App, Container: c.Name, Inputs: &pod.Inputs{SandboxID: "box", Searches: dns.Searches}}, target)
			if err != nil {
				t.Fatal(err)
			}
			if len(made.HostConfig.DNS) > 0 {
				t.Errorf("%s: it names DNS servers, which the engine refuses: %v", c.Name, made.HostConfig.DNS)
			}
		}
		one := endpoint
		one.Own = made.HostConfig.DNSSearch
		out[c.Name] = one
	}
	return out
}

// TestNames asks names in each container of a pod, on each build and kind of network with the back end that is the default there. The answers are in
// testdata/names.golden; equal ones share an entry.
func TestNames(t *testing.T) {
	of, order := map[string][]string{}, []string{}
	for _, v := range []struct {
		build int
		kind  network.WindowsNetwork
	}{{14393, network.Transparent}, {17763, network.L2Bridge}, {20348, network.L2Bridge}, {26100, network.L2Bridge}, {17763, "overlay"}, {20348, "overlay"}, {26100, "overlay"},
		{17763, network.Transparent}, {20348, network.Transparent}, {26100, network.Transparent}, {17763, network.NAT}, {20348, network.NAT}, {26100, network.NAT}} {
		h := newReachHost(t, v.build, v.kind)
		backEnd := "relay"
		if h.state.Overlay != nil {
			backEnd = "hnslb"
		}
		stack, names := ipstack.Of(h.world, h.serve(backEnd, false)), namesOf(t, h)
		for _, container := range []string{"first", "second"} {
			if n, there := names[container]; there {
				got := answers(stack, n)
				if of[got] == nil {
					order = append(order, got)
				}
				of[got] = append(of[got], fmt.Sprintf("%d %s, %s container", v.build, v.kind, container))
				for _, must := range []string{"kubernetes: yes", "web: yes", "kubernetes.default.svc.cluster.local: yes", "example.com: yes"} {
					if !slices.ContainsFunc(strings.Split(got, "\n"), func(line string) bool { return strings.HasPrefix(line, must) }) {
						t.Errorf("%d %s, %s container: want %q in\n%s", v.build, v.kind, container, must, got)
					}
				}
			}
		}
	}
	var b strings.Builder
	for _, text := range order {
		fmt.Fprintf(&b, "== %s\n%s", strings.Join(of[text], "\n== "), text)
	}
	matches(t, "testdata/names.golden", b.String())
}

// answers returns a line for each name, with the steps of what is not a yes.
func answers(stack *ipstack.Host, n ipstack.Names) string {
	var b strings.Builder
	for _, name := range asked {
		a := stack.Resolve(n, name, func(whole string) bool { return slices.Contains(known, whole) })
		fmt.Fprintf(&b, "%s: %s", name, a.Verdict)
		if a.Verdict == ipstack.Yes {
			fmt.Fprintf(&b, ", %s", a.Sees)
		}
		fmt.Fprintln(&b)
		for _, hop := range a.Hops {
			if a.Verdict != ipstack.Yes {
				fmt.Fprintf(&b, "    %s\n", hop)
			}
		}
	}
	return b.String()
}
