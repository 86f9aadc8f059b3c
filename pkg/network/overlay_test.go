package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
)

var theOverlay = hns.Overlay{Name: "winkube.4096", Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.1")}

// tunnelling is a Windows host in mode overlay.
func tunnelling(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Config{Mode: Overlay, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}, NonMasquerade: prefixes("10.244.0.0/16")})
	r.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win1"}, Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}})
	return r
}

// TestManagerTunnels: the network is created, its tunnel end announced with HNS' hardware address, pods join no engine network; a pod whose endpoint
// is lost is stopped.
func TestManagerTunnels(t *testing.T) {
	r := tunnelling(t)
	m, host, e := r.Manager, r.w, r.e
	host.unrouted = true
	for range 2 {
		if err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if join, err := m.Join(&v1.Pod{}); err != nil || join != "none" {
		t.Errorf("%s, %v", join, err)
	}
	notes := r.node.annotations
	if notes["flannel.alpha.coreos.com/backend-data"] != `{"VNI":4096,"VtepMAC":"00:15:5d:4b:1c:8f"}` || notes["flannel.alpha.coreos.com/public-ip"] != "10.1.0.11" {
		t.Errorf("%v", notes)
	}
	if events := r.node.events; len(events) != 1 || !strings.HasPrefix(events[0], "Warning HostRouteRefused: ") {
		t.Errorf("%v", events)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: types.UID("u1")}}
	o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "s1", Running: true, Network: "none"}}}
	if !m.Attachments(p, o)["s1"].Waits {
		t.Error("the sandbox waits for nothing")
	}
	if err := m.Attach(t.Context(), p, pod.Member{ID: "s1", SandboxID: "s1"}); err != nil {
		t.Fatal(err)
	}
	if a := m.Attachments(p, o)["s1"]; a.Waits || fmt.Sprint(a.Addresses) != "[10.244.1.3]" {
		t.Errorf("%+v", a)
	}
	clear(host.list) // HNS crashed
	if err := m.sync(t.Context()); err == nil || len(e.stopped) > 0 {
		t.Errorf("%v; stopped immediately are %v", err, e.stopped)
	}
	r.clock.Step(stopAfter)
	for range 2 {
		if err := m.sync(t.Context()); err != nil || !slices.Equal(e.stopped, []string{"s1"}) {
			t.Errorf("%v; stopped are %v", err, e.stopped)
		}
		r.clock.Step(stopAfter)
	}
	if events := r.node.events; len(events) != 2 || !strings.HasPrefix(events[1], "Warning EndpointsLost: Recreating 1 containers") {
		t.Errorf("%v", events)
	}
}

// TestLeaving: an adapter carries networks of one kind, so that of a former mode is removed first, unless it has pods.
func TestLeaving(t *testing.T) {
	r := tunnelling(t)
	m, host, e := r.Manager, r.w, r.e
	e.used = true
	e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Labels: map[string]string{LabelPods: "pods"}}
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "drain this node") || len(host.networks) > 0 {
		t.Errorf("to overlay, with pods: %v", err)
	}
	e.used = false
	if err := m.sync(t.Context()); err != nil || len(e.networks) > 0 || len(host.networks) != 1 {
		t.Errorf("to overlay: %v, %v, %v", err, e.networks, host.networks)
	}
	r.start(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}})
	host.hnsID = "id"
	r.SetNode(nodeWith("10.244.1.0/24"))
	host.list[hns.IDOf("id-9")] = hns.PodEndpoint{ID: hns.IDOf("id-9"), Container: "s9", Addr: netip.MustParseAddr("10.244.1.9"), Attached: []string{"s9"}}
	if err := r.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "drain this node") || len(e.networks) > 0 {
		t.Errorf("to host-gateway, with pods: %v", err)
	}
	clear(host.list)
	if err := r.sync(t.Context()); err != nil || len(host.networks) > 0 || len(e.networks) != 1 {
		t.Errorf("to host-gateway: %v, %v", err, host.networks)
	}
}

// TestRangeOfOverlay: a network with pods is not recreated with another range, which the Node reports; one without pods is.
func TestRangeOfOverlay(t *testing.T) {
	r := tunnelling(t)
	m, host := r.Manager, r.w
	before := theOverlay
	before.Subnet = netip.MustParsePrefix("10.244.9.0/24")
	if _, err := host.MakeOverlay(before); err != nil {
		t.Fatal(err)
	}
	host.list[hns.IDOf("id-9")] = hns.PodEndpoint{ID: hns.IDOf("id-9"), Container: "s9", Addr: netip.MustParseAddr("10.244.9.3"), Attached: []string{"s9"}}
	wrong, err := m.compare(t.Context())
	if wrong.Reason != rangeChanged || !errors.Is(err, hns.ErrDiffers) || !strings.Contains(wrong.Message, "drain this node") || host.networks["winkube.4096"].Subnet != before.Subnet {
		t.Errorf("with a pod: %+v, %v", wrong, err)
	}
	clear(host.list)
	if wrong, err := m.compare(t.Context()); wrong.Reason != "" || !errors.Is(err, hns.ErrDiffers) || len(host.networks) > 0 {
		t.Errorf("without: %+v, %v; networks %v", wrong, err, host.networks)
	}
	if _, err := m.compare(t.Context()); err != nil || host.networks["winkube.4096"].Subnet != theOverlay.Subnet {
		t.Errorf("afterwards: %v, networks %v", err, host.networks)
	}
}

// TestUnusedRange: a Windows node with ranges of both families reports once which one its pods do not use, in each mode.
func TestUnusedRange(t *testing.T) {
	for _, cfg := range []Config{{Mode: HostGateway}, {Mode: Upstream, Windows: NAT}, {Mode: Overlay}} {
		cfg.Platform, cfg.NodeIPs = onServer2022, []netip.Addr{nodeFour, nodeSix}
		r := newRig(t, cfg)
		r.w.hnsID = "id"
		both := &v1.Node{Spec: v1.NodeSpec{PodCIDRs: []string{"fd00:244:1::/64", "10.244.1.0/24"}}}
		for range 2 {
			r.SetNode(both)
			if err := r.sync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		const want = "Warning PodCIDRUnused: Docker on Windows has only IPv4 networks (moby/moby#48287): pods get addresses of 10.244.1.0/24, and none of fd00:244:1::/64. " +
			"They are no endpoints of IPv6 Services"
		if events := slices.DeleteFunc(r.node.events, func(e string) bool { return !strings.Contains(e, unusedRange) }); !slices.Equal(events, []string{want}) {
			t.Errorf("%s %s: the Node's Events are %q, want %q", cfg.Mode, cfg.Windows, events, want)
		}
		if err := r.Ready(); err != nil {
			t.Errorf("%s %s: %v", cfg.Mode, cfg.Windows, err)
		}
	}
}

// TestUplinkOfOverlay: an overlay that permanently costs the host its address is removed.
func TestUplinkOfOverlay(t *testing.T) {
	r := tunnelling(t)
	m, host := r.Manager, r.w
	host.uplink, host.losing = &Uplink{Interface: "Ethernet", Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.11/24")}}, true // Windows loses it with the switch
	for range restorations + 2 {
		if err := m.sync(t.Context()); err == nil {
			t.Fatal("nothing is wrong")
		}
		r.clock.Step(settling)
	}
	if len(host.networks) > 0 || host.restored != restorations || !slices.Equal(r.node.reasons(), []string{"Warning " + addressLost}) {
		t.Errorf("networks %v, restored %d times, events %v", host.networks, host.restored, r.node.events)
	}
	if err := m.sync(t.Context()); err == nil || len(host.networks) > 0 {
		t.Errorf("%v; it was made again", err)
	}
}
