package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/pod"
)

// engine is a container engine in memory.
type engine struct {
	mu       sync.Mutex
	networks map[string]pod.EngineNetwork
	used     bool // containers are connected
	down     error
	made     int
	version  string

	members map[string][]netip.Addr
	stopped []string
}

func (e *engine) Networks(context.Context) ([]pod.EngineNetwork, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []pod.EngineNetwork
	for _, n := range e.networks {
		out = append(out, n)
	}
	return out, e.down
}

func (e *engine) EnsureNetwork(_ context.Context, want pod.EngineNetwork) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != nil {
		return e.down
	}
	if _, ok := e.networks[want.Name]; ok {
		return errors.New("network exists")
	}
	e.made++
	e.networks[want.Name] = want
	return nil
}

func (e *engine) RemoveNetwork(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used {
		return errors.New("network has active endpoints")
	}
	delete(e.networks, name)
	return nil
}

func (e *engine) Members(context.Context, string) (map[string][]netip.Addr, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.members, e.down
}

func (e *engine) Connect(_ context.Context, network, id string, addrs []netip.Addr) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, has := range e.members {
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(has, a) }) {
			return fmt.Errorf("address already in use by %s", other)
		}
	}
	if _, ok := e.networks[network]; !ok || e.down != nil {
		return cmp.Or(e.down, errors.New("no such network"))
	}
	e.members[id] = addrs
	return nil
}

func (e *engine) Stop(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = append(e.stopped, id)
	delete(e.members, id)
	return e.down
}

func (e *engine) Version(context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.version, e.down
}

// system is a Host in memory.
type system struct {
	mu      sync.Mutex
	state   State
	applied int
	fail    error
	around  Surroundings
	hints   chan struct{}

	hnsID     string
	connected []netip.Addr

	uplink     *Uplink
	restorable bool
	restored   int
}

func (s *system) Prepare(_ context.Context, want State) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if want.Bridge == nil || s.fail != nil {
		return nil, s.fail
	}
	return map[string]string{optionHNS: s.hnsID}, nil
}

func (s *system) Connected(context.Context, pod.EngineNetwork) ([]netip.Addr, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected, true, s.fail
}

func (s *system) Uplink(netip.Addr) (*Uplink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uplink, s.fail
}

func (s *system) Restore(_ context.Context, u Uplink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored++
	if s.restorable {
		s.uplink = &u
	}
	return nil
}

func (s *system) Apply(_ context.Context, want State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.state, s.applied = want, s.applied+1
	return nil
}

func (s *system) Look() (Surroundings, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.around, nil
}

func (s *system) Examine(context.Context, *Symptoms) error { return nil }

func (s *system) Changes(context.Context) (<-chan struct{}, error) { return s.hints, nil }

func nodeWith(cidrs ...string) *v1.Node { return &v1.Node{Spec: v1.NodeSpec{PodCIDRs: cidrs}} }

func newRig(t *testing.T, cfg Config) (*Manager, *engine, *system) {
	t.Helper()
	e := &engine{networks: map[string]pod.EngineNetwork{}, version: "20.10.24"}
	s := &system{hints: make(chan struct{}, 1)}
	m, err := New(cfg, Parts{Engine: e, EngineVersion: e.Version, Host: s, Clock: testclock.NewFakeClock(time.Unix(0, 0))})
	if err != nil {
		t.Fatal(err)
	}
	return m, e, s
}

func wantErr(t *testing.T, m *Manager, part string) {
	t.Helper()
	_, err := m.Join(&v1.Pod{})
	if part == "" {
		if err != nil || m.Ready() != nil {
			t.Errorf("not ready: %v", err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), part) || m.Ready() == nil {
		t.Errorf("Join: %v, Ready: %v, want %q", err, m.Ready(), part)
	}
}

func TestManager(t *testing.T) {
	ctx := t.Context()
	m, e, s := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
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
	// Once ready, what may pass does not stop pods.
	e.down, s.fail = errors.New("engine is away"), errors.New("locked")
	if err := m.sync(ctx); err == nil {
		t.Error("the error was lost")
	}
	wantErr(t, m, "")
	e.down, s.fail = nil, nil

	// Another range under running pods: refused, the old one served.
	e.used = true
	m.SetNode(nodeWith("10.244.7.0/24"))
	m.sync(ctx)
	wantErr(t, m, "the Node's pod CIDR is 10.244.7.0/24, but pods run on the engine's network \"winkube\" with 10.244.1.0/24")
	if e.made != 1 || s.state.Rules[0].PodCIDR.String() != "10.244.1.0/24" {
		t.Errorf("made %d times, %+v", e.made, s.state)
	}
	// Drained: made anew.
	e.used = false
	if err := m.sync(ctx); err != nil || e.made != 2 || e.networks["winkube"].Subnets[0].String() != "10.244.7.0/24" {
		t.Errorf("%v, %+v", err, e.networks)
	}
	wantErr(t, m, "")
	// An engine that was upgraded wants another option; in use it stays as it is.
	e.version, e.used = "28.1.0", true
	if err := m.sync(ctx); err != nil || e.made != 2 {
		t.Errorf("%v, made %d times", err, e.made)
	}
	e.used = false
	if err := m.sync(ctx); err != nil || e.networks["winkube"].Options["com.docker.network.bridge.gateway_mode_ipv4"] != "nat-unprotected" {
		t.Errorf("%v, %+v", err, e.networks)
	}
	if err := m.Cleanup(ctx); err != nil || len(e.networks) != 0 || len(s.state.Rules) != 0 {
		t.Errorf("%v, %+v, %+v", err, e.networks, s.state)
	}
	// Somebody else's network of our name is not touched.
	e.networks["winkube"] = pod.EngineNetwork{Name: "winkube", Driver: "bridge", Subnets: prefixes("172.30.0.0/24")}
	m.sync(ctx)
	if err := m.Cleanup(ctx); err != nil || len(e.networks) != 1 {
		t.Errorf("%v, %+v", err, e.networks)
	}
}

func TestManagerExternal(t *testing.T) {
	m, e, s := newRig(t, Config{Mode: External, Platform: onWindows, External: "mynet"})
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
	m, _, s := newRig(t, Config{Mode: HostGateway, Platform: onLinux})
	clock := m.parts.Clock.(*testclock.FakeClock)
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
		for deadline := time.After(10 * time.Second); !ok(); {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("%s: not within 10 s", what)
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
	eventually("hint", func() bool { clock.Step(longestRest); return applied() > n })
	n = applied()
	eventually("recheck", func() bool { clock.Step(recheck); return applied() > n })
	n = applied()
	s.hints <- struct{}{}
	eventually("mended right after a comparison", func() bool { return applied() > n })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestManagerOverlay(t *testing.T) {
	m, e, s := newRig(t, Config{Mode: Overlay, Platform: onLinux, NodeIPs: []netip.Addr{nodeFour}})
	s.around.Links = []Link{{Name: "eth0", MTU: 1500, Addrs: prefixes("10.1.0.11/24")}}
	node := nodeWith("10.244.1.0/24")
	node.Annotations = map[string]string{"others": "stay"}
	patches := 0
	refuse := errors.New("nodes is forbidden")
	m.parts.Annotate = func(_ context.Context, changes map[string]*string) error {
		if refuse != nil {
			return refuse
		}
		patches++
		node = node.DeepCopy()
		for k, v := range changes {
			if v == nil {
				delete(node.Annotations, k)
				continue
			}
			node.Annotations[k] = *v
		}
		return nil
	}
	m.SetNode(node)
	m.sync(t.Context())
	wantErr(t, m, "cannot tell other nodes of this node's tunnel: nodes is forbidden")
	refuse = nil
	m.sync(t.Context())
	wantErr(t, m, "")
	if len(s.state.Devices) != 1 || e.networks["winkube"].Options["com.docker.network.driver.mtu"] != "1450" || len(node.Annotations) != 5 {
		t.Errorf("%s%v", s.state, node.Annotations)
	}
	m.SetNode(node)
	m.sync(t.Context())
	if patches != 1 {
		t.Errorf("%d patches of a Node that is right", patches)
	}
	// Back in the other mode nothing is announced any more.
	m.cfg.Mode = HostGateway
	m.sync(t.Context())
	if len(node.Annotations) != 1 || len(s.state.Devices) != 0 {
		t.Errorf("left: %v, %v", node.Annotations, s.state.Devices)
	}
}
