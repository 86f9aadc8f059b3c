package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestHeal: a container whose address HNS has lost is stopped once, after a while, in our network and in others'.
func TestHeal(t *testing.T) {
	for _, cfg := range []Config{
		{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}},
		{Mode: External, External: "theirs", Platform: onWindows},
	} {
		r := newRig(t, cfg)
		m, e, s, clock := r.Manager, r.e, r.w, r.clock
		s.hnsID = "id"
		e.networks["theirs"] = pod.EngineNetwork{Name: "theirs", Driver: "transparent", Subnets: prefixes("10.9.0.0/24"), Options: map[string]string{optionHNS: "other"}}
		m.SetNode(nodeWith("10.244.1.0/24"))
		if err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		addr := func(n int) []netip.Addr { return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.244.1.%d", n))} }
		e.members = map[string][]netip.Addr{"cut": addr(3), "well": addr(4), "none": nil}
		s.connected = addr(4)
		for _, step := range []struct {
			after   time.Duration
			stopped []string
			err     string
		}{{0, nil, "container cut has lost its connection"}, {stopAfter - 1, nil, "has lost"}, {1, []string{"cut"}, ""}, {time.Minute, []string{"cut"}, ""}} {
			clock.Step(step.after)
			err := m.sync(t.Context())
			if fmt.Sprint(err) != "<nil>" && step.err == "" || step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)) {
				t.Errorf("after %s: %v, want %q", step.after, err, step.err)
			}
			if !slices.Equal(e.stopped, step.stopped) {
				t.Errorf("after %s: stopped %v, want %v", step.after, e.stopped, step.stopped)
			}
		}
		if events := r.node.events; len(events) != 1 || !strings.HasPrefix(events[0], "Warning EndpointsLost: Recreating 1 containers") {
			t.Errorf("events %q", events)
		}
		wantErr(t, m, "")
	}
}

// TestHealWaits: containers whose endpoints HNS restores in time keep running, and an unresponsive HNS is no reason to stop one.
func TestHealWaits(t *testing.T) {
	r := newRig(t, Config{Mode: External, External: "theirs", Platform: onServer2022})
	m, e, s, clock := r.Manager, r.e, r.w, r.clock
	e.networks["theirs"] = pod.EngineNetwork{Name: "theirs", Options: map[string]string{optionHNS: "other"}}
	e.members = map[string][]netip.Addr{"pod": {netip.MustParseAddr("10.9.0.3")}}
	for _, connected := range [][]netip.Addr{nil, e.members["pod"], nil} {
		clock.Step(stopAfter - 1)
		s.connected = connected
		if err := m.sync(t.Context()); (err == nil) != (connected != nil) {
			t.Errorf("connected %v: %v", connected, err)
		}
	}
	s.down = fmt.Errorf("HNS does not run")
	clock.Step(stopAfter)
	if err := m.sync(t.Context()); err == nil || len(e.stopped) > 0 {
		t.Errorf("%v, stopped %v", err, e.stopped)
	}
}

// TestReconnect: a pod that was disconnected from the engine's network is reconnected with its former addresses, even by an agent that knows them
// only from the pod's status; if another has one of them by now, its sandbox is stopped after a while.
func TestReconnect(t *testing.T) {
	for _, test := range []struct {
		name    string
		known   bool // before it was disconnected
		taken   bool // by another since
		members bool // the engine was briefly silent: the pod is not disconnected
		put     []netip.Addr
		stopped []string
	}{
		{name: "seen before", known: true, put: addrs("10.244.1.3")},
		{name: "from its status", put: addrs("10.244.1.9")},
		{name: "address taken", known: true, taken: true, stopped: []string{"box"}},
		{name: "not cut", known: true, members: true, put: addrs("10.244.1.3")},
	} {
		r := newRig(t, Config{Mode: HostGateway, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour}})
		m, e, clock := r.Manager, r.e, r.clock
		m.SetNode(nodeWith("10.244.1.0/24"))
		if err := m.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-m.wake
		p := webPod()
		p.Status.PodIPs = []v1.PodIP{{IP: "10.244.1.9"}}
		see := func(addresses []netip.Addr) {
			m.Attachments(p, pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, Network: "winkube", Addresses: addresses}}})
		}
		e.members = map[string][]netip.Addr{"well": addrs("10.244.1.4")}
		if test.known {
			see(addrs("10.244.1.3"))
		}
		if test.taken {
			e.members["new"] = addrs("10.244.1.3")
		}
		if test.members {
			e.members["box"] = addrs("10.244.1.3")
		}
		see(nil)
		select {
		case <-m.wake:
		default:
			t.Errorf("%s: the Manager was not woken", test.name)
		}
		if err := m.sync(t.Context()); (err != nil) != test.taken || len(e.stopped) > 0 {
			t.Errorf("%s: %v, stopped %v", test.name, err, e.stopped)
		}
		if !slices.Equal(e.members["box"], test.put) {
			t.Errorf("%s: it has %v, want %v", test.name, e.members["box"], test.put)
		}
		clock.Step(stopAfter)
		if err := m.sync(t.Context()); err != nil || !slices.Equal(e.stopped, test.stopped) {
			t.Errorf("%s: %v, stopped %v, want %v", test.name, err, e.stopped, test.stopped)
		}
		said := r.pods.events
		if reconnected := len(test.put) > 0 && !test.members; (len(said) > 0) != reconnected || reconnected &&
			said[0] != fmt.Sprintf(`shop/web u NetworkReconnected: Reconnected the pod to the engine's network "winkube" with the same addresses %v, after it had been disconnected`, test.put) {
			t.Errorf("%s: said %q", test.name, said)
		}
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// TestBridge: the engine's network is on top of the one in HNS, and is recreated when that was.
func TestBridge(t *testing.T) {
	r := newRig(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}})
	m, e, s := r.Manager, r.e, r.w
	s.hnsID = "first"
	m.SetNode(nodeWith("10.244.1.0/24"))
	made := func() string { return e.networks["winkube"].Options[optionHNS] }
	if err := m.sync(t.Context()); err != nil || made() != "FIRST" {
		t.Errorf("%v, %q", err, made())
	}
	s.hnsID = "second"
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "being recreated") { // HNS' network was removed with the engine's
		t.Errorf("%v", err)
	}
	if err := m.sync(t.Context()); err != nil || made() != "SECOND" || e.made != 2 {
		t.Errorf("%v, %q, made %d times", err, made(), e.made)
	}
	// An engine that started in between adopted HNS' network, without our label.
	e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Subnets: prefixes("10.244.1.0/24"), Options: map[string]string{optionHNS: "second"}}
	_ = m.sync(t.Context())
	if err := m.sync(t.Context()); err != nil || e.networks["winkube"].Labels[LabelPods] == "" {
		t.Errorf("%v, %+v", err, e.networks)
	}
	// The Node has another range: the old network stays while pods use it.
	e.used = true
	m.SetNode(nodeWith("10.244.9.0/24"))
	s.hnsID = "third"
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "drain this node") || made() != "SECOND" {
		t.Errorf("%v, %q", err, made())
	}
	e.used = false
	_ = m.sync(t.Context())
	if err := m.sync(t.Context()); err != nil || made() != "THIRD" || e.networks["winkube"].Subnets[0] != prefixes("10.244.9.0/24")[0] {
		t.Errorf("%v, %+v", err, e.networks)
	}
	m.SetNode(nodeWith("10.244.1.0/24"))
	e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "l2bridge", Subnets: prefixes("10.244.1.0/24"), Options: map[string]string{optionHNS: "theirs"}}
	if err := m.sync(t.Context()); err == nil || !strings.Contains(err.Error(), "did not make") {
		t.Errorf("a network of others: %v", err)
	}
}

// TestEngineRestart: after Docker's start the network is still the pods', with the options that endpoints need, and is not recreated: Docker finds it
// in HNS by its ID. Docker does not find one that an older kubelet named in lower case, and adopts it without options; it is recreated once.
func TestEngineRestart(t *testing.T) {
	r := newRig(t, Config{Mode: HostGateway, Platform: onServer2022, NodeIPs: []netip.Addr{nodeFour}})
	m, e := r.Manager, r.e
	r.w.hnsID = "a33529ee-9a3c-4a2d-b8b9-a0d9c8a1d6f0"
	m.SetNode(nodeWith("10.244.1.0/24"))
	if err := m.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		e.restart()
		if err := m.sync(t.Context()); err != nil || e.made != 1 || e.networks["winkube"].Options[optionNAT] != "true" {
			t.Errorf("after a restart: %v, made %d times, %+v", err, e.made, e.networks["winkube"])
		}
	}
	older := e.networks["winkube"]
	older.Options[optionHNS] = r.w.hnsID
	e.restart()
	_ = m.sync(t.Context())
	if err := m.sync(t.Context()); err != nil || e.made != 2 || e.networks["winkube"].Options[optionNAT] != "true" {
		t.Errorf("an older kubelet's: %v, made %d times, %+v", err, e.made, e.networks["winkube"])
	}
}
