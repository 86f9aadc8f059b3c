package network

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

func TestManager(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	m, e, s := r.Manager, r.e, r.s
	wantErr(t, m, "network is not ready: the Node object is not known yet")
	m.SetNode(nodeWith())
	if err := m.sync(ctx); err == nil {
		t.Error("no error without pod CIDR")
	}
	wantErr(t, m, "no spec.podCIDRs yet")
	m.SetNode(nodeWith("10.244.1.0/24"))
	e.down = errors.New("engine is away")
	m.sync(ctx)
	wantErr(t, m, "engine is away")
	e.down = nil
	s.fail = errors.New("no iptables")
	m.sync(ctx)
	wantErr(t, m, "no iptables")
	s.fail = nil
	for range 3 {
		if err := m.sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, m, "")
	if name, err := m.Join(&v1.Pod{}); name != "winkube" || err != nil || e.made != 1 || len(s.state.Rules) != 1 {
		t.Errorf("%q, %v, made %d times, %+v", name, err, e.made, s.state)
	}
	// Once ready, a temporary error does not stop pods.
	e.down, s.fail = errors.New("engine is away"), errors.New("locked")
	if err := m.sync(ctx); err == nil {
		t.Error("the error was lost")
	}
	wantErr(t, m, "")
	e.down, s.fail = nil, nil

	// Another range under running pods is refused, and the old one still served.
	e.used = true
	m.SetNode(nodeWith("10.244.7.0/24"))
	m.sync(ctx)
	wantErr(t, m, "the Node's pod CIDR is 10.244.7.0/24, but pods run on the engine's network \"winkube\" with 10.244.1.0/24")
	if e.made != 1 || s.state.Rules[0].PodCIDR.String() != "10.244.1.0/24" {
		t.Errorf("made %d times, %+v", e.made, s.state)
	}
	// After draining it is recreated.
	e.used = false
	if err := m.sync(ctx); err != nil || e.made != 2 || e.networks["winkube"].Subnets[0].String() != "10.244.7.0/24" {
		t.Errorf("%v, %+v", err, e.networks)
	}
	wantErr(t, m, "")
	// An upgraded engine needs another option; a network in use stays unchanged.
	e.version, e.used = "28.1.0", true
	if err := m.sync(ctx); err != nil || e.made != 2 || s.state.Rules[0].Guarded != "winkube0" {
		t.Errorf("%v, made %d times, rules %+v", err, e.made, s.state.Rules)
	}
	e.used = false
	if err := m.sync(ctx); err != nil || e.networks["winkube"].Options["com.docker.network.bridge.gateway_mode_ipv4"] != "nat-unprotected" || s.state.Rules[0].Guarded != "" {
		t.Errorf("%v, %+v, rules %+v", err, e.networks, s.state.Rules)
	}
	delete(e.networks, "winkube")
	// A network of our name that others created is not touched.
	e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "bridge", Subnets: prefixes("172.30.0.0/24")}
	if err := m.sync(ctx); err == nil || !strings.Contains(err.Error(), "did not make") || len(e.networks) != 1 || e.networks["winkube"].Subnets[0] != prefixes("172.30.0.0/24")[0] {
		t.Errorf("%v, %+v", err, e.networks)
	}
}

func TestManagerExternal(t *testing.T) {
	r := newRig(t, Config{Mode: External, Platform: onWindows, External: "mynet"})
	m, e, s := r.Manager, r.e, r.s
	m.sync(t.Context())
	wantErr(t, m, `the engine has no network "mynet"`)
	e.networks["mynet"] = pod.EngineNetwork{Name: "mynet"}
	m.sync(t.Context())
	wantErr(t, m, "")
	if name, _ := m.Join(&v1.Pod{}); name != "mynet" || e.made != 0 || s.applied != 0 {
		t.Errorf("joins %q, made %d, applied %d", name, e.made, s.applied)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Mode: "bogus"}, Parts{}); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

func TestRun(t *testing.T) {
	r := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	m, s, clock := r.Manager, r.s, r.clock
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	applied := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.applied
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.After(time.Minute); !ok(); {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("%s: not within a minute", what)
			}
		}
	}
	m.SetNode(nodeWith("10.244.1.0/24"))
	eventually("node", func() bool { return m.Ready() == nil })
	n := applied()
	m.Kick()
	eventually("kick", func() bool { return applied() > n })
	n = applied()
	s.hints <- struct{}{}
	eventually("hint", func() bool { clock.Step(minInterval); return applied() > n })
	n = applied()
	eventually("recheck", func() bool { clock.Step(recheck); return applied() > n })
	n = applied()
	s.hints <- struct{}{}
	eventually("reports", r.proxy.watched.Load)
	eventually("repaired right after a comparison", func() bool { return applied() > n })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if r.proxy.watched.Load() {
		t.Error("what Run had started has not ended")
	}
}

func TestManagerOverlay(t *testing.T) {
	cfg := Config{Mode: Overlay, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour}}
	r := newRig(t, cfg)
	r.s.around.Links = []Link{{Name: "eth0", MTU: 1500, Addrs: prefixes("10.1.0.11/24")}}
	r.node.annotations["others"] = "stay"
	r.node.refuse = errors.New("nodes is forbidden")
	object := func() *v1.Node {
		n := nodeWith("10.244.1.0/24")
		n.Annotations = maps.Clone(r.node.annotations)
		return n
	}
	r.SetNode(object())
	r.sync(t.Context())
	wantErr(t, r.Manager, "cannot announce this node's tunnel to other nodes: nodes is forbidden")
	r.node.refuse = nil
	r.sync(t.Context())
	wantErr(t, r.Manager, "")
	if len(r.s.state.Devices) != 1 || r.e.networks["winkube"].Options["com.docker.network.driver.mtu"] != "1450" || len(r.node.annotations) != 5 {
		t.Errorf("%s%v", r.s.state, r.node.annotations)
	}
	r.SetNode(object())
	r.sync(t.Context())
	if r.node.patches != 1 {
		t.Errorf("%d patches of a Node that is right", r.node.patches)
	}
	// Back in the other mode the announcements are removed.
	cfg.Mode = HostGateway
	r.start(t, cfg)
	r.SetNode(object())
	r.sync(t.Context())
	if len(r.node.annotations) != 1 || len(r.s.state.Devices) != 0 {
		t.Errorf("left: %v, %v", r.node.annotations, r.s.state.Devices)
	}
}
