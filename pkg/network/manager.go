package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Engine is what the pod network asks of the container engine.
type Engine interface {
	Networks(ctx context.Context) ([]pod.EngineNetwork, error)
	// EnsureNetwork makes want exist. One that is there and differs is an error.
	EnsureNetwork(ctx context.Context, want pod.EngineNetwork) error
	// RemoveNetwork fails while containers use the network; gone is no error.
	RemoveNetwork(ctx context.Context, name string) error
	// Members are the running containers with addresses of their own in the network, by ID.
	Members(ctx context.Context, network string) (map[string][]netip.Addr, error)
	// Connect puts a running container on the network, with these addresses.
	Connect(ctx context.Context, network, container string, addrs []netip.Addr) error
	// Stop ends a container in order; one that has ended is no error.
	Stop(ctx context.Context, container string) error
}

// Host is what the pod network asks of the system beside the engine.
type Host interface {
	// Prepare makes what the engine's network is to be built upon, and returns what that needs beside s.Network's options. Idempotent.
	Prepare(ctx context.Context, s State) (options map[string]string, err error)
	// Connected are the addresses that the system has connected in a network of the engine; known is false where the engine alone connects.
	Connected(ctx context.Context, n pod.EngineNetwork) (addrs []netip.Addr, known bool, err error)
	// Uplink is what the interface with address a has by hand; nil: no interface has it by hand, or this system never loses it.
	Uplink(a netip.Addr) (*Uplink, error)
	// Restore gives the interface its settings back.
	Restore(ctx context.Context, u Uplink) error
	// Apply makes Rules and Gateways of s hold. The same State twice changes nothing; an empty one removes every trace of ours.
	Apply(ctx context.Context, s State) error
	// Changes hints that something may have been changed by others. nil: this host does not tell.
	Changes(ctx context.Context) (<-chan struct{}, error)
	// Look reads the host's interfaces and routes.
	Look() (Surroundings, error)
	// Examine reads the host's side of s, whose Config is set, for Diagnose.
	Examine(ctx context.Context, s *Symptoms) error
}

// Parts are what a Manager works with.
type Parts struct {
	Engine Engine
	// EngineVersion asks the engine; nil: it is taken for an old one.
	EngineVersion func(context.Context) (string, error)
	Host          Host        // nil: this host
	Clock         clock.Clock // nil: the real one
	// Annotate writes annotations of this node's Node; nil values are removed. nil: nobody is told of tunnels.
	Annotate func(ctx context.Context, changes map[string]*string) error
	// Event tells something of the Node. May be nil.
	Event func(kind, reason, message string)
	// Probe says whether a packet from the address from, which is the pods' gateway (invalid: any), finds its way. nil: it does.
	Probe func(ctx context.Context, from netip.Addr) error
	// Way is what the proxy of this host says of the way to other nodes; nil: nothing is heard of it.
	Way Way
	// ProbeTo says whether a packet from the address from (invalid: any) finds its way to the pods of another node in to. Goes with Way.
	ProbeTo func(ctx context.Context, from netip.Addr, to netip.Prefix) error
	// Plugins make the pods' network in mode CNI, and are nil in all others.
	Plugins Plugins
	// Containers are the ids of all that the engine has of ours; with Plugins, and in mode Overlay on Windows.
	Containers func(ctx context.Context) (map[string]bool, error)
	// DNS is a pod's resolver configuration, which containers of Windows have from who makes their network. With Plugins; nil: they get none.
	DNS func(p *v1.Pod) (pod.DNS, error)
	// PodEvent tells something of a pod. May be nil.
	PodEvent func(namespace, name, uid, kind, reason, message string)
	// Changed is called after each attempt to bring about a State, with what Ready says from now on. It must not block. May be nil.
	Changed func(ready error)
}

// Manager holds this host to the Plan of its pod network. It implements pod.Network and pod.Attacher.
type Manager struct {
	cfg   Config
	parts Parts
	wake  chan struct{}

	mu      sync.Mutex
	trouble trouble
	known   bool              // a Node was seen
	cidrs   []string          // of the Node
	notes   map[string]string // annotations of the Node that concern tunnels
	state   State             // as applied
	err     error             // why pods cannot start; nil: ready
	places  map[types.UID]place

	// Of sync alone:
	cut   map[string]time.Time // containers without connection, since when
	guard guarded
	over  overlaid
}

var (
	_ pod.Network  = (*Manager)(nil)
	_ pod.Attacher = (*Manager)(nil)
)

const (
	recheck    = 30 * time.Second
	firstRetry = time.Second
)

// New checks cfg and returns a Manager that has not touched anything.
func New(cfg Config, parts Parts) (*Manager, error) {
	if _, err := Plan(cfg, Facts{}); err != nil {
		return nil, err
	}
	if (cfg.Mode == CNI) != (parts.Plugins != nil) {
		return nil, fmt.Errorf("network mode %s and CNI plugins go together; the mode is %s", CNI, cfg.Mode)
	}
	if parts.Host == nil {
		parts.Host = NewHost()
	}
	if parts.Clock == nil {
		parts.Clock = clock.RealClock{}
	}
	m := &Manager{cfg: cfg, parts: parts, wake: make(chan struct{}, 1), err: errors.New("the Node object is not known yet"), over: newOverlaid(parts.Host, cfg.Mode)}
	if m.over.endpoints != nil {
		m.parts.Plugins = m.over.endpoints
	}
	return m, nil
}

// SetNode tells which pod CIDRs this node has, and what it tells others of its tunnels. It does not block; nil is ignored.
func (m *Manager) SetNode(n *v1.Node) {
	if n == nil {
		return
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	m.mu.Lock()
	m.trouble.recall(n)
	notes := vxlan.Known(n.Annotations)
	news := !m.known || !slices.Equal(cidrs, m.cidrs) || !maps.Equal(notes, m.notes)
	m.known, m.cidrs, m.notes = true, slices.Clone(cidrs), notes
	m.mu.Unlock()
	if news {
		m.Kick()
	}
}

// Kick has everything compared soon: to be called after the engine came back. It does not block.
func (m *Manager) Kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Joined is to be called when a pod has got its connection: an l2bridge network of Windows has policies to add to it. It does not block.
func (m *Manager) Joined() {
	if m.State().Bridge != nil {
		m.Kick()
	}
}

// Join implements pod.Network.
func (m *Manager) Join(p *v1.Pod) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return "", fmt.Errorf("network is not ready: %w", m.err)
	}
	return m.state.Join, nil
}

// Ready says why the pod network is not ready, for the Node's conditions; nil: it is.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// State returns what was last applied.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Run holds the host to the plan until ctx ends, and leaves everything in place then: pods go on. Returns nil when ctx ended.
func (m *Manager) Run(ctx context.Context) error {
	if m.parts.Plugins != nil {
		go m.tend(ctx)
	}
	if m.cfg.Mode == CNI {
		go m.follow(ctx, m.cfg.ConfDir)
	}
	if m.parts.Way != nil {
		go m.followWay(ctx)
	}
	changes, err := m.parts.Host.Changes(ctx)
	if err != nil {
		klog.ErrorS(err, "The pod network is repaired by comparison only", "every", m.every())
	}
	timer := m.parts.Clock.NewTimer(m.every())
	defer timer.Stop()
	for failures := 0; ; {
		err := m.sync(ctx)
		synced := m.parts.Clock.Now()
		var wait time.Duration
		if wait, failures = next(err, failures, m.every()); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "The pod network is not as it should be", "comparedAgainIn", wait)
		}
		if err := m.wait(ctx, timer, changes, synced, wait); err != nil {
			return nil
		}
	}
}

// sync compares and repairs everything once, and has the Node say what stands in the way.
func (m *Manager) sync(ctx context.Context) error {
	wrong, err := m.compare(ctx)
	m.tellMoved()
	if err != nil && wrong.Reason == "" { // may pass: nothing new is known
		return err
	}
	return m.judge(ctx, wrong)
}

// compare repairs everything once. The Condition has a Reason where somebody must act; an error alone may pass.
func (m *Manager) compare(ctx context.Context) (Condition, error) {
	m.mu.Lock()
	known, cidrs := m.known, m.cidrs
	m.mu.Unlock()
	if !known && m.cfg.Mode != External {
		return Condition{}, nil
	}
	facts, around, err := m.facts(ctx, cidrs)
	if err != nil {
		return Condition{}, m.failed(err)
	}
	state, err := Plan(m.cfg, facts)
	if err != nil {
		return m.refused(rangeInvalid, err)
	}
	if m.cfg.Mode == CNI {
		return m.plugged(ctx, state)
	}
	if !state.Ready.Ready {
		return m.refused(state.Ready.Reason, errors.New(state.Ready.Message))
	}
	networks, err := m.parts.Engine.Networks(ctx)
	if err != nil {
		return Condition{}, m.failed(err)
	}
	if m.cfg.Mode == External {
		return m.external(ctx, state, networks)
	}
	if m.guard.ruined != nil {
		return m.refused(addressLost, m.guard.ruined)
	}
	if state.Overlay != nil {
		return m.tunnelled(ctx, state, facts.MTU, networks, around)
	}
	if err := m.leaveOverlay(); err != nil {
		return Condition{}, m.failed(err)
	}
	overlap := m.overlaps(state, networks, around)
	if wrong := m.forbids(state, networks, around, overlap); wrong.Reason != "" {
		return m.refused(wrong.Reason, errors.New(wrong.Message))
	}
	if err := m.save(networks, &state); err != nil {
		return Condition{}, m.failed(err)
	}
	if err := m.prepare(ctx, networks, &state); err != nil {
		return overlap, m.failed(err)
	}
	have, err := m.existing(ctx, networks, state.Network)
	if err != nil {
		return overlap, m.failed(err)
	}
	if have != nil && !sameSubnets(have.Subnets, state.Network.Subnets) {
		return m.keep(ctx, facts, *have, state)
	}
	if have == nil {
		if state.Bridge != nil && state.Network.Options[optionHNS] == "" {
			return overlap, m.failed(fmt.Errorf("the engine's network %q was removed, to be made anew", state.Join))
		}
		if err := m.parts.Engine.EnsureNetwork(ctx, *state.Network); err != nil {
			return overlap, m.failed(err)
		}
	}
	if err := errors.Join(m.verify(ctx, state), m.parts.Host.Apply(ctx, state), m.announce(ctx, state)); err != nil {
		return overlap, m.failed(err)
	}
	m.done(state, nil)
	if have == nil { // made just now: nothing was on it
		return overlap, nil
	}
	return overlap, m.heal(ctx, *have)
}

// prepare makes what the engine's network stands upon, unless that has another range and is to go or to stay first.
func (m *Manager) prepare(ctx context.Context, networks []pod.EngineNetwork, s *State) error {
	i := slices.IndexFunc(networks, func(n pod.EngineNetwork) bool { return n.Name == s.Network.Name })
	if i >= 0 && !sameSubnets(networks[i].Subnets, s.Network.Subnets) {
		return nil
	}
	options, err := m.parts.Host.Prepare(ctx, *s)
	maps.Copy(s.Network.Options, options)
	return err
}

// facts asks what Plan must know, and looks around.
func (m *Manager) facts(ctx context.Context, cidrs []string) (facts Facts, around Surroundings, err error) {
	facts.PodCIDRs = cidrs
	if m.cfg.Mode == External {
		return facts, around, nil
	}
	if m.parts.EngineVersion != nil {
		if facts.EngineVersion, err = m.parts.EngineVersion(ctx); err != nil {
			return facts, around, err
		}
	}
	if around, err = m.parts.Host.Look(); err != nil {
		klog.ErrorS(err, "Cannot look for what stands in the pod network's way")
	}
	facts.MTU = around.MTU(m.cfg.NodeIPs) // the node's address may be one of a router before it: then it is not known
	facts.Adapter = around.Adapter(m.cfg.NodeIPs)
	return facts, around, nil
}

// announce tells others by the Node how to reach this node's tunnels, or takes that back.
func (m *Manager) announce(ctx context.Context, s State) error {
	m.mu.Lock()
	have := m.notes
	m.mu.Unlock()
	changes := vxlan.Changes(have, vxlan.Annotations(s.Devices, have))
	if m.parts.Annotate == nil || len(changes) == 0 {
		return nil
	}
	if err := m.parts.Annotate(ctx, changes); err != nil {
		return fmt.Errorf("cannot tell other nodes of this node's tunnel: %w", err)
	}
	return nil
}

func (m *Manager) external(ctx context.Context, state State, all []pod.EngineNetwork) (Condition, error) {
	i := slices.IndexFunc(all, func(n pod.EngineNetwork) bool { return n.Name == state.Join })
	if i < 0 {
		return m.refused(noNetwork, fmt.Errorf("the engine has no network %q (CONTAINER_NETWORK)", state.Join))
	}
	if err := m.announce(ctx, state); err != nil {
		return Condition{}, m.failed(err)
	}
	m.done(state, nil)
	return Condition{}, m.heal(ctx, all[i])
}

// existing returns the engine network of want's name where it can or must be used; nil: want is to be made. One of ours that differs
// is removed first, which the engine does only when no container is connected to it.
func (m *Manager) existing(ctx context.Context, all []pod.EngineNetwork, want *pod.EngineNetwork) (*pod.EngineNetwork, error) {
	i := slices.IndexFunc(all, func(n pod.EngineNetwork) bool { return n.Name == want.Name })
	if i < 0 {
		return nil, nil
	}
	have := all[i]
	subnets := sameSubnets(have.Subnets, want.Subnets)
	options := true
	for k, v := range want.Options {
		options = options && (have.Options[k] == v || k == optionInterface) // the adapter counts when the network is made
	}
	if subnets && options && have.Driver == want.Driver {
		return &have, nil
	}
	// An engine of Windows that finds our network in HNS takes it for its own, without labels.
	ours := have.Labels[LabelPods] != "" || have.Options[optionHNS] != "" && have.Options[optionHNS] == want.Options[optionHNS]
	if !ours {
		return nil, fmt.Errorf("the engine has a network %q that this program did not make; remove it or choose another name", have.Name)
	}
	if err := m.parts.Engine.RemoveNetwork(ctx, have.Name); err != nil {
		if have.Driver != want.Driver {
			return nil, fmt.Errorf("the engine's network %q has driver %s, wanted is %s; drain this node, then it is made anew: %w", have.Name, have.Driver, want.Driver, err)
		}
		if subnets {
			klog.ErrorS(err, "The pod network was made with other options and stays so while pods use it", "network", have.Name)
		}
		return &have, nil
	}
	if want.Options[optionHNS] != "" { // it went along
		return nil, fmt.Errorf("the engine's network %q was removed, to be made anew", have.Name)
	}
	return nil, nil
}

// keep goes on serving the pods of an engine network whose range is no longer the Node's, and refuses new ones: a network is never
// rebuilt under running pods.
func (m *Manager) keep(ctx context.Context, facts Facts, have pod.EngineNetwork, want State) (Condition, error) {
	refusal := fmt.Errorf("the Node's pod CIDR is %s, but pods run on the engine's network %q with %s; drain this node, then it is made anew",
		join(want.Network.Subnets), have.Name, join(have.Subnets))
	facts.PodCIDRs = nil
	for _, s := range have.Subnets {
		facts.PodCIDRs = append(facts.PodCIDRs, s.String())
	}
	old, err := Plan(m.cfg, facts)
	if err == nil && old.Ready.Ready {
		if err = m.parts.Host.Apply(ctx, old); err == nil {
			old.Ready = Condition{Reason: "PodCIDRChanged", Message: refusal.Error()}
			m.done(old, refusal)
		}
	}
	return m.refused(rangeChanged, errors.Join(refusal, err))
}

func (m *Manager) done(s State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil && err == nil {
		klog.InfoS("The pod network is ready", "network", s.Join, "detail", s.Ready.Message)
	}
	m.state, m.err = s, err
	m.tell()
}

// tell says what Ready says. The caller holds the lock.
func (m *Manager) tell() {
	if m.parts.Changed != nil {
		m.parts.Changed(m.err)
	}
}

// failed notes an error that may pass. A network that once was ready stays so: its pods and new ones most likely work.
func (m *Manager) failed(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		m.err = err
	}
	m.tell()
	return err
}

// refused notes an error that stands until somebody acts.
func (m *Manager) refused(reason string, err error) (Condition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
	m.tell()
	return Condition{Reason: reason, Message: err.Error()}, err
}

// Cleanup removes every trace: rules and the engine network. It fails while containers use the network.
func (m *Manager) Cleanup(ctx context.Context) error {
	name := m.cfg.Name
	if name == "" {
		name = defaultName
	}
	errs := []error{m.parts.Host.Apply(ctx, State{}), m.removeOverlay()}
	all, err := m.parts.Engine.Networks(ctx)
	errs = append(errs, err)
	for _, n := range all {
		if n.Name == name && n.Labels[LabelPods] != "" {
			errs = append(errs, m.parts.Engine.RemoveNetwork(ctx, name))
		}
	}
	return errors.Join(errs...)
}

func sameSubnets(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}
