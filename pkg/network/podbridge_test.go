package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
)

// ports is an in-memory kernel for pods' interfaces.
type ports struct {
	has    map[string]podlink.Port
	bridge podlink.Network // as last created; empty if it was removed
	gone   bool            // namespaces no longer exist
	steps  []podlink.Step  // of the last Do

	dropped int // number of removals of the bridge
}

func (p *ports) Ports() ([]podlink.Port, error) { return slices.Collect(maps.Values(p.has)), nil }

func (p *ports) MakeBridge(n podlink.Network) error {
	p.bridge = n
	return nil
}

func (p *ports) RemoveBridge(string) error {
	p.bridge = podlink.Network{}
	p.dropped++
	return nil
}

func (p *ports) Do(steps []podlink.Step, container, _ string) error {
	if p.gone {
		return podlink.ErrGone
	}
	last := steps[len(steps)-1]
	if p.steps = steps; last.Do != podlink.Finish {
		return nil
	}
	p.has[last.Port] = podlink.Port{Name: last.Port, Alias: last.Alias, Bridge: steps[0].Bridge, Up: true, Hairpin: true, Index: len(p.has) + 1}
	return nil
}

func (p *ports) Repair(_ podlink.Network, r podlink.Repair) error {
	if r.Remove {
		delete(p.has, r.Port)
	}
	return nil
}

func (*ports) Watch(context.Context, func(string)) error { return nil }

// linking is a node whose kubelet creates the pods' interfaces.
func linking(t *testing.T) (*rig, *ports) {
	t.Helper()
	k := &ports{has: map[string]podlink.Port{}}
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	r.kernel = k
	r.start(t, Config{Mode: HostGateway, Platform: onLinux, Interfaces: ByKubelet})
	r.SetNode(nodeWith("10.244.1.0/24"))
	return r, k
}

const infra = "0123456789abcdef"

func attached(t *testing.T, r *rig, id string) string {
	t.Helper()
	if err := r.Attach(t.Context(), webPod(), pod.Member{ID: id, SandboxID: id, PID: 7}); err != nil {
		t.Fatal(err)
	}
	o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: id, PID: 7, Running: true, Network: "none"}}}
	a := r.Attachments(webPod(), o)[pod.EngineID(id)]
	if a.Waits || a.MapsPorts {
		t.Errorf("%+v", a)
	}
	return fmt.Sprint(a.Addresses)
}

func TestPodBridge(t *testing.T) {
	r, k := linking(t)
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if join, err := r.Join(webPod()); err != nil || join != "none" || len(r.e.networks) > 0 {
		t.Errorf("pods join %q, %v; the engine has %v", join, err, r.e.networks)
	}
	if k.bridge.Bridge != "winkube0" || len(r.s.state.Gateways) != 1 || len(r.s.state.Rules) != 1 {
		t.Errorf("%+v, %+v", k.bridge, r.s.state)
	}
	if got := attached(t, r, infra); got != "[10.244.1.2]" {
		t.Error(got)
	}
	// The next kubelet finds it in the kernel.
	r.start(t, Config{Mode: HostGateway, Platform: onLinux, Interfaces: ByKubelet})
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := attached(t, r, infra); got != "[10.244.1.2]" {
		t.Error(got)
	}
	if got := attached(t, r, "ffffffffffffffff"); got != "[10.244.1.3]" {
		t.Error(got)
	}
	// A deleted one is recreated, with an Event.
	delete(k.has, podlink.PortName("ffffffffffffffff"))
	if err := r.sync(t.Context()); err != nil || len(k.has) != 2 {
		t.Errorf("%v, %v", err, k.has)
	}
	if events := strings.Join(r.pods.events, "\n"); !strings.Contains(events, "NetworkReconnected") {
		t.Errorf("Events are %q", events)
	}
}

// TestPodBridgeBesideTheEngine: the engine's network stays, and its addresses are not assigned, until its last pod is removed.
func TestPodBridgeBesideTheEngine(t *testing.T) {
	r, k := linking(t)
	r.e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "bridge", Subnets: prefixes("10.244.1.0/24"), Labels: map[string]string{LabelPods: "pods"}}
	r.e.members = map[string][]netip.Addr{"old": {netip.MustParseAddr("10.244.1.128")}}
	r.s.around = Surroundings{Links: []Link{{Name: "winkube0", Addrs: prefixes("10.244.1.1/24")}}}
	old := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "old", Running: true, Network: "winkube", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.128")}}}}
	if a := r.Attachments(webPod(), old); len(a) > 0 {
		t.Errorf("a pod of the engine's network gets %v", a)
	}
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := attached(t, r, infra); got != "[10.244.1.129]" || len(r.e.networks) != 1 {
		t.Errorf("%s; the engine has %v", got, r.e.networks)
	}
	if events := strings.Join(append(r.pods.events, r.node.events...), "\n"); strings.Contains(events, otherNetwork) {
		t.Errorf("pods that reach each other are reported: %s", events)
	}
	r.e.members = nil
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) > 0 || len(k.has) != 1 {
		t.Errorf("%v; the engine has %v, the kernel %v", err, r.e.networks, k.has)
	}
}

// TestPodBridgeOtherRange: pods keep their range until they are deleted.
func TestPodBridgeOtherRange(t *testing.T) {
	r, k := linking(t)
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	attached(t, r, infra)
	r.s.around = Surroundings{Links: []Link{{Name: "winkube0", Addrs: prefixes("10.244.1.1/24")}}}
	r.SetNode(nodeWith("10.244.9.0/24"))
	r.lasting(t.Context())
	if said := r.said(); !strings.Contains(said, rangeChanged) || !strings.Contains(said, "drain this node") {
		t.Errorf("the Node says %q", said)
	}
	wantErr(t, r.Manager, "10.244.1.0/24")
	if g := r.s.state.Gateways; len(g) != 1 || g[0].Address.Addr() != netip.MustParseAddr("10.244.1.1") || len(k.has) != 1 {
		t.Errorf("pods have %v, %v", g, k.has)
	}
	if err := r.Detach(t.Context(), pod.Member{ID: infra, SandboxID: infra}); err != nil {
		t.Fatal(err)
	}
	if err := r.sync(t.Context()); err != nil || k.dropped != 1 || k.bridge.Ranges[0].Subnet.String() != "10.244.9.0/24" {
		t.Errorf("%v; the bridge is %+v, removed %d times", err, k.bridge, k.dropped)
	}
}

// TestBackToTheEngine: the engine does not know the addresses that the kubelet assigned.
func TestBackToTheEngine(t *testing.T) {
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	r.s.around = Surroundings{Links: []Link{{Name: "wkp0123456789ab"}}}
	r.SetNode(nodeWith("10.244.1.0/24"))
	r.lasting(t.Context())
	if said := r.said(); !strings.Contains(said, podsOnLinks) || !strings.Contains(said, "--pod-interfaces=kubelet") {
		t.Errorf("the Node says %q", said)
	}
	r.s.around = Surroundings{}
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) != 1 {
		t.Errorf("%v, %v", err, r.e.networks)
	}
}

func TestInterfaceSysctlsComeWithTheInterface(t *testing.T) {
	r, k := linking(t)
	if err := r.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := webPod()
	p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.conf.eth0.forwarding", Value: "1"}, {Name: "net.core.somaxconn", Value: "9"}}}
	if err := r.Attach(t.Context(), p, pod.Member{ID: infra, SandboxID: infra, PID: 7}); err != nil {
		t.Fatal(err)
	}
	var set []string
	for _, s := range k.steps {
		if s.Do == podlink.SetSysctl && !s.Optional {
			set = append(set, s.Key)
		}
	}
	if got := fmt.Sprint(set); got != "[net/ipv4/conf/eth0/arp_notify net/ipv4/conf/eth0/forwarding]" {
		t.Error(got)
	}
}

// TestInterfaceSysctlsWithPlugins: plugins do not know them.
func TestInterfaceSysctlsWithPlugins(t *testing.T) {
	k := &ports{has: map[string]podlink.Port{}}
	r := newRig(t, Config{Mode: CNI, Platform: onLinux})
	r.kernel = k
	r.start(t, Config{Mode: CNI, Platform: onLinux})
	p := webPod()
	p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.conf.eth0.forwarding", Value: "1"}}}
	if err := r.Attach(t.Context(), p, pod.Member{ID: infra, SandboxID: infra, PID: 7}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(k.steps); got != "[sysctl net/ipv4/conf/eth0/forwarding=1]" {
		t.Error(got)
	}
}

func TestCheckInterfaces(t *testing.T) {
	for want, cfg := range map[string]Config{
		"":                                 {Mode: Overlay, Platform: onLinux, Interfaces: ByKubelet},
		`"cni" is not known`:               {Mode: HostGateway, Platform: onLinux, Interfaces: "cni"},
		"is for Linux":                     {Mode: HostGateway, Platform: onWindows, Interfaces: ByKubelet},
		"does not fit network mode cni":    {Mode: CNI, Platform: onLinux, Interfaces: ByKubelet},
		"does not fit network mode extern": {Mode: External, Platform: onLinux, Interfaces: ByKubelet},
	} {
		if err := cfg.CheckInterfaces(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	if _, err := New(Config{Mode: HostGateway, Platform: onLinux, Interfaces: ByKubelet}, Parts{}); err == nil || errors.Is(err, podlink.ErrGone) {
		t.Errorf("without the kernel's interfaces: %v", err)
	}
}
