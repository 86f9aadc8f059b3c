package network

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
)

// troubled is a Manager whose Events are noted and whose way to others can be cut.
type troubled struct {
	*Manager
	e      *engine
	s      *system
	clock  *testclock.FakeClock
	events []string
	cut    error
	from   netip.Addr
}

func newTroubled(t *testing.T, cfg Config) *troubled {
	t.Helper()
	m, e, s := newRig(t, cfg)
	r := &troubled{Manager: m, e: e, s: s, clock: m.parts.Clock.(*testclock.FakeClock)}
	m.parts.Event = func(kind, reason, _ string) { r.events = append(r.events, kind+" "+reason) }
	m.parts.Probe = func(_ context.Context, from netip.Addr) error {
		r.from = from
		return r.cut
	}
	return r
}

// lasting compares until what is wrong has lasted.
func (r *troubled) lasting(ctx context.Context) {
	r.sync(ctx)
	r.clock.Step(patience)
	r.sync(ctx)
	r.sync(ctx)
}

func (r *troubled) said() string {
	c := r.Unavailable()
	if c == nil {
		return "nothing"
	}
	if c.Ready {
		return "available " + c.Reason
	}
	return c.Reason + ": " + c.Message
}

func TestTrouble(t *testing.T) {
	ctx := t.Context()
	r := newTroubled(t, Config{Mode: HostGateway, Platform: onLinux})
	r.SetNode(nodeWith())
	r.sync(ctx)
	if r.said() != "nothing" {
		t.Errorf("a new Node without a range says %s at once", r.said())
	}
	r.lasting(ctx)
	if !strings.HasPrefix(r.said(), "PodCIDRMissing: the Node has no spec.podCIDRs yet") {
		t.Error(r.said())
	}
	// The range comes, the way is still cut.
	r.cut = errors.New("connection timed out")
	r.SetNode(nodeWith("10.244.1.0/24"))
	if err := r.sync(ctx); err == nil || !strings.Contains(err.Error(), "stays marked NetworkUnavailable: connection timed out") {
		t.Errorf("%v", err)
	}
	if r.Ready() != nil || !strings.HasPrefix(r.said(), "PodCIDRMissing") || r.from.String() != "10.244.1.1" {
		t.Errorf("ready: %v, said %s, probed from %s", r.Ready(), r.said(), r.from)
	}
	r.e.mu.Lock()
	r.e.down = errors.New("engine is away")
	r.e.mu.Unlock()
	r.cut = nil
	if r.sync(ctx); !strings.HasPrefix(r.said(), "PodCIDRMissing") {
		t.Errorf("taken back although nothing is known: %s", r.said())
	}
	r.e.mu.Lock()
	r.e.down = nil
	r.e.mu.Unlock()
	if r.sync(ctx); r.said() != "available NetworkReady" {
		t.Error(r.said())
	}
	// Others put an address, a route and an engine network into the range: said once, and pods still start.
	r.s.mu.Lock()
	r.s.around.Links = []Link{{Name: "tun0", Addrs: prefixes("10.244.1.77/32")}}
	r.s.around.Routes = []HostRoute{{Dst: netip.MustParsePrefix("10.244.1.64/26"), Link: "tun0"}}
	r.s.mu.Unlock()
	r.e.networks["mynet"] = pod.EngineNetwork{Name: "mynet", Subnets: prefixes("10.244.0.0/16")}
	r.lasting(ctx)
	for _, part := range []string{"PodCIDROverlaps", `holds the address 10.244.1.77/32 of "tun0"`, `network "mynet" has 10.244.0.0/16`, "10.244.1.64/26 dev tun0", "mend: ip route del"} {
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
	if got := strings.Join(r.events, ", "); got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// TestForbids: a network that would collide, or whose adapter is not there, is not begun, and is when nothing stands in its way any more. One
// that is there already stays.
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
		r := newTroubled(t, test.cfg)
		r.SetNode(nodeWith("10.244.1.0/24"))
		r.s.mu.Lock()
		r.s.around = test.around
		r.s.mu.Unlock()
		r.lasting(ctx)
		if !strings.HasPrefix(r.said(), reason+": ") || !strings.Contains(r.said(), test.says) || len(r.e.networks) > 0 || len(r.events) != 1 {
			t.Errorf("%s: said is %s, told %q, the engine has %v", reason, r.said(), r.events, r.e.networks)
		}
		r.s.mu.Lock()
		r.s.around = Surroundings{Links: []Link{{Name: "vEthernet (Ethernet 7)"}}}
		r.s.mu.Unlock()
		r.sync(ctx)
		if len(r.e.networks) != 1 || r.said() != "available NetworkReady" {
			t.Errorf("%s: mended, said is %s, the engine has %v", reason, r.said(), r.e.networks)
		}
	}
}

// What an earlier run said is taken back by the next one; what others say stays.
func TestTroubleRecalled(t *testing.T) {
	marked := func(reason string) *v1.Node {
		n := nodeWith("10.244.1.0/24")
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue, Reason: reason}}
		return n
	}
	for reason, want := range map[string]string{rangeOverlaps: "available NetworkReady", routeConflict: "available NetworkReady", "NoRouteCreated": "nothing"} {
		r := newTroubled(t, Config{Mode: HostGateway, Platform: onLinux})
		r.SetNode(marked(reason))
		r.sync(t.Context())
		if r.said() != want {
			t.Errorf("%s: %s, want %s", reason, r.said(), want)
		}
	}
}

func TestTroubleOther(t *testing.T) {
	r := newTroubled(t, Config{Mode: External, External: "mynet", Platform: onLinux})
	r.lasting(t.Context())
	if !strings.HasPrefix(r.said(), "NetworkMissing: ") {
		t.Error(r.said())
	}
	r = newTroubled(t, Config{Mode: HostGateway, Platform: onLinux})
	r.SetNode(nodeWith("10.244.1.0"))
	r.lasting(t.Context())
	if !strings.HasPrefix(r.said(), "PodCIDRInvalid: ") {
		t.Error(r.said())
	}
}
