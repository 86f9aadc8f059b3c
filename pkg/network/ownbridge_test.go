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

var onServer2019 = pod.Platform{OS: "windows", Build: 17763, SharedNetwork: true}

// bridging is a Server 2019 whose pods get our endpoints.
func bridging(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Config{Mode: HostGateway, Platform: onServer2019, NodeIPs: []netip.Addr{nodeFour}, Services: prefixes("10.96.0.0/12")})
	r.w.hnsID = "id"
	r.SetNode(nodeWith("10.244.1.0/24"))
	return r
}

// TestOwnBridge: below schema 2.7 the network's gateway is not the pods', whose endpoints we create; the engine has no network, or the one that it
// adopted. A pod whose endpoint is lost is stopped.
func TestOwnBridge(t *testing.T) {
	r := bridging(t)
	for range 2 {
		if err := r.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := hns.Bridge{Name: "winkube", Subnet: netip.MustParsePrefix("10.244.1.0/24"), Gateway: netip.MustParseAddr("10.244.1.2"), Router: netip.MustParseAddr("10.244.1.1")}
	have := r.w.bridges["winkube"]
	if len(r.e.networks) > 0 || have.Name != want.Name || have.Subnet != want.Subnet || have.Gateway != want.Gateway || have.Router != want.Router {
		t.Errorf("%+v, want %+v; the engine has %v", have, want, r.e.networks)
	}
	if gateway := have.Pods().Gateway; gateway != want.Gateway {
		t.Errorf("the pods' gateway is %s", gateway)
	}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: types.UID("u1")}}
	if join, err := r.Join(p); err != nil || join != "none" {
		t.Errorf("%s, %v", join, err)
	}
	o := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "s1", Running: true, Network: "none"}}}
	if err := r.Attach(t.Context(), p, pod.Member{ID: "s1", SandboxID: "s1"}); err != nil {
		t.Fatal(err)
	}
	if a := r.Attachments(p, o)["s1"]; a.Waits || fmt.Sprint(a.Addresses) != "[10.244.1.3]" {
		t.Errorf("%+v", a)
	}
	// Docker has restarted, and finds the network in HNS.
	r.e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Subnets: prefixes("10.244.1.0/24"), Options: map[string]string{optionHNS: "ID", optionName: "winkube"}}
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) != 1 || len(r.w.bridges) != 1 {
		t.Errorf("adopted: %v, %v, %v", err, r.e.networks, r.w.bridges)
	}
	clear(r.w.list) // HNS crashed
	_ = r.sync(t.Context())
	r.clock.Step(stopAfter)
	if err := r.sync(t.Context()); err != nil || !slices.Equal(r.e.stopped, []string{"s1"}) {
		t.Errorf("%v; stopped are %v", err, r.e.stopped)
	}
}

// TestLeavingOwnBridge: the bridge is removed when another kind or mode uses the adapter, and when its range changes, unless it has pods; engine
// networks of former kinds are removed first, although Docker lost their labels.
func TestLeavingOwnBridge(t *testing.T) {
	r := bridging(t)
	r.e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "transparent", Options: map[string]string{optionName: "winkube"}}
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) > 0 || len(r.w.bridges) != 1 {
		t.Fatalf("from transparent: %v, %v", err, r.e.networks)
	}
	used := hns.PodEndpoint{ID: hns.IDOf("id-9"), Container: "s9", Addr: netip.MustParseAddr("10.244.1.9"), Attached: []string{"s9"}}
	r.w.list[used.ID] = used
	r.SetNode(nodeWith("10.244.9.0/24"))
	if wrong, err := r.compare(t.Context()); wrong.Reason != rangeChanged || !errors.Is(err, hns.ErrDiffers) || !strings.Contains(wrong.Message, "drain this node") {
		t.Errorf("another range, with a pod: %+v, %v", wrong, err)
	}
	clear(r.w.list)
	_ = r.sync(t.Context())
	if err := r.sync(t.Context()); err != nil || r.w.bridges["winkube"].Subnet != netip.MustParsePrefix("10.244.9.0/24") {
		t.Errorf("another range: %v, %v", err, r.w.bridges)
	}
	for _, cfg := range []Config{{Mode: Overlay}, {Mode: HostGateway, Windows: Transparent, Adapter: "Ethernet"}} {
		cfg.Platform, cfg.NodeIPs = onServer2019, []netip.Addr{nodeFour}
		r.w.bridges["winkube"] = hns.Bridge{Name: "winkube"}
		r.w.list[used.ID] = used
		r.start(t, cfg)
		r.SetNode(nodeWith("10.244.1.0/24"))
		if err := r.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "drain this node") || len(r.w.bridges) != 1 {
			t.Errorf("%+v, with a pod: %v", cfg, err)
		}
		clear(r.w.list)
		if err := r.sync(t.Context()); err != nil || len(r.w.bridges) > 0 {
			t.Errorf("%+v: %v, %v", cfg, err, r.w.bridges)
		}
	}
}

// TestOverlayFindsLabelless: mode overlay removes the engine's network of a former mode although Docker has lost its labels (before 27.5, at each
// start), and leaves one that only has our name.
func TestOverlayFindsLabelless(t *testing.T) {
	r := tunnelling(t)
	theirs := pod.EngineNetwork{Name: "theirs", Driver: "transparent", Options: map[string]string{optionName: "theirs"}}
	r.e.networks["theirs"] = theirs
	r.e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Labels: map[string]string{LabelPods: "pods"}, Options: map[string]string{optionName: "winkube"}}
	r.e.restart()
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) != 1 {
		t.Errorf("%v, %v", err, r.e.networks)
	}
	r.e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Options: map[string]string{optionName: "0123456789ab"}}
	if err := r.sync(t.Context()); err != nil || len(r.e.networks) != 2 {
		t.Errorf("%v, %v", err, r.e.networks)
	}
}

// TestComparedAgain: in each mode and kind, on each Server that has it, a second comparison and that of another kubelet create, remove and report
// nothing.
func TestComparedAgain(t *testing.T) {
	for _, build := range []int{14393, 17763, 20348, 26100} {
		for _, cfg := range []Config{{Mode: HostGateway}, {Mode: Upstream, Windows: L2Bridge}, {Mode: HostGateway, Windows: Transparent, Adapter: "Ethernet"}, {Mode: HostGateway, Windows: NAT}, {Mode: Overlay}} {
			cfg.Platform, cfg.NodeIPs = pod.Platform{OS: "windows", Build: build, SharedNetwork: true}, []netip.Addr{nodeFour}
			if cfg.CheckWindows() != nil {
				continue
			}
			r := newRig(t, cfg)
			r.w.hnsID = "a33529ee-9a3c-4a2d-b8b9-a0d9c8a1d6f0"
			theirs := pod.EngineNetwork{Name: "theirs", Driver: "l2bridge", Subnets: prefixes("10.9.0.0/24"), Options: map[string]string{optionName: "theirs", optionHNS: "B"}}
			r.e.networks["theirs"], r.w.bridges["theirs"] = theirs, hns.Bridge{Name: "theirs"}
			r.SetNode(nodeWith("10.244.1.0/24"))
			if err := r.sync(t.Context()); err != nil {
				t.Fatalf("%d, %+v: %v", build, cfg, err)
			}
			all := func() string {
				return fmt.Sprint(r.e.made, r.e.networks, r.w.bridges, r.w.networks, r.w.list, r.w.made, r.w.restored, r.node.patches, r.node.events)
			}
			before := all()
			for i := range 4 {
				if i == 2 {
					r.start(t, cfg)
				}
				n := nodeWith("10.244.1.0/24")
				n.Annotations = r.node.annotations
				r.SetNode(n)
				if err := r.sync(t.Context()); err != nil || all() != before {
					t.Errorf("%d, %+v: comparison %d: %v\n%s\nwas\n%s", build, cfg, i+2, err, all(), before)
				}
			}
			if r.e.made > 1 || len(r.node.events) > 0 || r.e.networks["theirs"].Name == "" || r.w.bridges["theirs"].Name == "" {
				t.Errorf("%d, %+v: %s", build, cfg, all())
			}
		}
	}
}
