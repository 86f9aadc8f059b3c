package network

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/report"
)

func TestCondition(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	r.SetNode(nodeWith())
	r.sync(ctx)
	if r.said() != "nothing" {
		t.Errorf("a new Node without a range says %s immediately", r.said())
	}
	r.lasting(ctx)
	if !strings.HasPrefix(r.said(), "PodCIDRMissing: the Node has no spec.podCIDRs yet") {
		t.Error(r.said())
	}
	// The range arrives, but the connection is still interrupted.
	r.ways.server = errors.New("connection timed out")
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "stays marked NetworkUnavailable: connection timed out") {
		t.Errorf("%v", err)
	}
	if r.Ready() != nil || !strings.HasPrefix(r.said(), "PodCIDRMissing") || r.ways.from.String() != "10.244.1.1" {
		t.Errorf("ready: %v, said %s, probed from %s", r.Ready(), r.said(), r.ways.from)
	}
	r.e.mu.Lock()
	r.e.down = errors.New("engine is away")
	r.e.mu.Unlock()
	r.ways.server = nil
	if r.sync(ctx); !strings.HasPrefix(r.said(), "PodCIDRMissing") {
		t.Errorf("taken back although nothing is known: %s", r.said())
	}
	r.e.mu.Lock()
	r.e.down = nil
	r.e.mu.Unlock()
	if r.sync(ctx); r.said() != "available NetworkReady" {
		t.Error(r.said())
	}
	// Others put an address, a route and an engine network into the range: it is reported once, and pods still start.
	r.s.mu.Lock()
	r.s.around.Links = []Link{{Name: "tun0", Addrs: prefixes("10.244.1.77/32")}}
	r.s.around.Routes = []HostRoute{{Dst: netip.MustParsePrefix("10.244.1.64/26"), Link: "tun0"}}
	r.s.mu.Unlock()
	r.e.networks["mynet"] = pod.EngineNetwork{Name: "mynet", Subnets: prefixes("10.244.0.0/16")}
	r.lasting(ctx)
	for _, part := range []string{"PodCIDROverlaps", `holds the address 10.244.1.77/32 of "tun0"`, `network "mynet" has 10.244.0.0/16`, "10.244.1.64/26 dev tun0", "fix: ip route del"} {
		if !strings.Contains(r.said(), part) {
			t.Errorf("%q is missing in %s", part, r.said())
		}
	}
	wantErr(t, r.Manager, "")
	r.s.mu.Lock()
	r.s.around = Surroundings{}
	r.s.mu.Unlock()
	delete(r.e.networks, "mynet")
	r.sync(ctx)
	if r.said() != "available NetworkReady" {
		t.Error(r.said())
	}
	want := "Warning PodCIDRMissing, Normal NetworkReady, Warning PodCIDROverlaps, Normal NetworkReady"
	if got := strings.Join(r.node.reasons(), ", "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// TestForbids: a network that would collide, or whose adapter is missing, is not created until the obstacle is gone. An existing one stays.
func TestForbids(t *testing.T) {
	ctx := t.Context()
	windows := pod.Platform{OS: "windows", Build: 20348}
	for reason, test := range map[string]struct {
		cfg    Config
		around Surroundings
		says   string
	}{
		rangeOverlaps: {Config{Mode: HostGateway, Platform: onLinux}, Surroundings{Links: []Link{{Name: "tun0", Addrs: prefixes("10.244.1.77/32")}}}, `"tun0"`},
		noAdapter: {Config{Mode: HostGateway, Platform: windows, Windows: Transparent, Adapter: "Ethernet 7"}, Surroundings{Links: []Link{{Name: "Ethernet"}, {Name: "Wi-Fi"}}},
			`--interface=Ethernet 7: this host has no such network adapter; it has "Ethernet", "Wi-Fi"`},
	} {
		r := newRig(t, test.cfg)
		r.SetNode(nodeWith("10.244.1.0/24"))
		r.s.mu.Lock()
		r.s.around = test.around
		r.s.mu.Unlock()
		r.lasting(ctx)
		if !strings.HasPrefix(r.said(), reason+": ") || !strings.Contains(r.said(), test.says) || len(r.e.networks) > 0 || len(r.node.events) != 1 {
			t.Errorf("%s: said is %s, the Node has Events %q, the engine has %v", reason, r.said(), r.node.events, r.e.networks)
		}
		r.s.mu.Lock()
		r.s.around = Surroundings{Links: []Link{{Name: "vEthernet (Ethernet 7)"}}}
		r.s.mu.Unlock()
		r.sync(ctx)
		if len(r.e.networks) != 1 || r.said() != "available NetworkReady" {
			t.Errorf("%s: repaired, said is %s, the engine has %v", reason, r.said(), r.e.networks)
		}
	}
}

// The next run clears an earlier run's condition; conditions of others stay.
func TestConditionRecalled(t *testing.T) {
	marked := func(reason string) *v1.Node {
		n := nodeWith("10.244.1.0/24")
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: reason}}
		return n
	}
	for reason, want := range map[string]string{rangeOverlaps: "available NetworkReady", routeConflict: "available NetworkReady", "NoRouteCreated": "nothing"} {
		r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
		r.SetNode(marked(reason))
		r.sync(t.Context())
		if r.said() != want {
			t.Errorf("%s: %s, want %s", reason, r.said(), want)
		}
	}
}

func TestConditionOther(t *testing.T) {
	r := newRig(t, Config{Mode: External, External: "mynet", Platform: onLinux})
	r.lasting(t.Context())
	if !strings.HasPrefix(r.said(), "NetworkMissing: ") {
		t.Error(r.said())
	}
	r = newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	r.SetNode(nodeWith("10.244.1.0"))
	r.lasting(t.Context())
	if !strings.HasPrefix(r.said(), "PodCIDRInvalid: ") {
		t.Error(r.said())
	}
}

// The proxy's reports appear on the Node, do not stop pods, and are cleared when packets arrive again, one in each range.
func TestReports(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	proxy, timeout := r.proxy, errors.New("connection timed out")
	r.ways.pods = timeout
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(ctx); err != nil || r.said() != "nothing" {
		t.Fatalf("%v; said %s", err, r.said())
	}
	proxy.list = []report.Trouble{
		{Reason: "RouteConflict", Message: "a route to node2 is there", To: netip.MustParsePrefix("10.244.2.0/24")},
		{Reason: "RouteConflict", Message: "a route to node3 is there", To: netip.MustParsePrefix("10.244.3.0/24")},
	}
	r.lasting(ctx)
	if r.said() != "RouteConflict: a route to node2 is there; a route to node3 is there" {
		t.Error(r.said())
	}
	wantErr(t, r.Manager, "")
	proxy.list = nil
	if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "stays marked NetworkUnavailable: cannot reach the pods in 10.244.2.0/24: connection timed out") {
		t.Error(err)
	}
	r.ways.pods, r.ways.probed = nil, nil
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" {
		t.Errorf("%v; said %s", err, r.said())
	}
	if want := []string{"10.244.1.1 to 10.244.2.0/24", "10.244.1.1 to 10.244.3.0/24"}; !slices.Equal(r.ways.probed, want) {
		t.Errorf("probed %q, want %q", r.ways.probed, want)
	}
	// A node that never answers is gone with its route.
	proxy.list, r.ways.pods = []report.Trouble{{Reason: "RouteConflict", Message: "a route to node4 is there", To: netip.MustParsePrefix("10.244.4.0/24")}}, timeout
	r.lasting(ctx)
	proxy.list = nil
	for _, after := range []time.Duration{0, goneAfter} {
		r.clock.Step(after)
		if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "10.244.4.0/24") {
			t.Errorf("after %s: %v", after, err)
		}
	}
	r.clock.Step(time.Second)
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" {
		t.Errorf("%v; said %s", err, r.said())
	}
	// After another fault: the ranges of the first are dropped, and an unreadable report is no fault.
	proxy.list = []report.Trouble{{Reason: "PodCIDROverlaps", Message: "node0 has it"}}
	r.lasting(ctx)
	r.ways.probed, proxy.list, proxy.err = nil, nil, errors.New("spoilt")
	if err := r.sync(ctx); err != nil || r.said() != "available NetworkReady" || len(r.ways.probed) > 0 {
		t.Errorf("%v; said %s; probed %q", err, r.said(), r.ways.probed)
	}
	want := "Warning RouteConflict, Normal NetworkReady, Warning RouteConflict, Normal NetworkReady, Warning PodCIDROverlaps, Normal NetworkReady"
	if got := strings.Join(r.node.reasons(), ", "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// A change of the proxy's report is handled without waiting for a comparison.
func TestFollowReports(t *testing.T) {
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		r.followReports(ctx)
		close(done)
	}()
	r.proxy.now <- struct{}{}
	<-r.wake
	cancel()
	<-done
}
