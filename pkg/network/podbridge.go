package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/pod"
)

// Interfaces says who creates pods' interfaces on Linux.
type Interfaces string

const (
	ByEngine  Interfaces = "engine"  // on a network of the engine
	ByKubelet Interfaces = "kubelet" // on a bridge of ours; the engine starts pods without a network
)

// ownsLinks says whether the kubelet creates the pods' interfaces on Linux.
func (cfg Config) ownsLinks() bool { return cfg.Interfaces == ByKubelet }

// PodBridge names the bridge of the interfaces that the kubelet creates; "": it creates none.
func (cfg Config) PodBridge() string {
	if cfg.ownsLinks() {
		return bridgeName
	}
	return ""
}

// ChooseInterfaces sets Interfaces to who, or if that is "", to the kubelet where it can make pods' interfaces. Mode, External and Platform
// must be set. The error is that of CheckInterfaces.
func (cfg *Config) ChooseInterfaces(who string) error {
	cfg.Interfaces = Interfaces(who)
	if who == "" {
		cfg.Interfaces = ByKubelet
		if cfg.External != "" || cfg.CheckInterfaces() != nil {
			cfg.Interfaces = ByEngine
		}
	}
	return cfg.CheckInterfaces()
}

// CheckInterfaces rejects an unknown Interfaces, or one that the mode does not support.
func (cfg Config) CheckInterfaces() error {
	switch {
	case cfg.Interfaces != "" && cfg.Interfaces != ByEngine && cfg.Interfaces != ByKubelet:
		return fmt.Errorf("%q is not known; want %s or %s", cfg.Interfaces, ByEngine, ByKubelet)
	case cfg.ownsLinks() && cfg.Platform.OS == "windows":
		return fmt.Errorf("%s is for Linux; want %s", ByKubelet, ByEngine)
	case cfg.ownsLinks() && (cfg.Mode == External || cfg.Mode == CNI):
		return fmt.Errorf("%s does not fit network mode %s, in which others make the pods' network; want %s", ByKubelet, cfg.Mode, ByEngine)
	}
	return nil
}

// ownLinks turns the plan of a bridge that the engine creates into that of one that we create, with the same device, addresses and rules.
func ownLinks(cfg Config, facts Facts, s *State) {
	if !cfg.ownsLinks() {
		return
	}
	n := podlink.Network{Bridge: bridgeName, MTU: facts.MTU}
	for i, c := range s.Network.Subnets {
		n.Ranges = append(n.Ranges, podlink.Range{Subnet: c, Gateway: s.Network.Gateways[i]})
	}
	if n.MTU == 0 {
		n.MTU = usualMTU
	}
	if len(s.Devices) > 0 {
		n.MTU = smallestMTU(s.Devices)
	}
	s.Join, s.Network, s.Links = noEngineNetwork, nil, &n
}

// podBridge is the Maker of host-gateway, upstream and overlay on Linux if the kubelet creates the pods' interfaces. A network that the engine
// created has the same bridge: its pods keep their interfaces, new ones get ours beside them. It is removed once it has no pods.
type podBridge struct {
	cfg       Config
	engine    Engine
	host      Host
	pods      Pods
	places    *placements
	kernel    podlink.Kernel
	links     *podlink.Links
	attacher  *attacher
	collect   collector
	announcer announcer
	repairer  repairer
	changed   func() // makes the Manager compare again
}

func newPodBridge(s shared) Maker {
	links := podlink.New(s.PodLinks)
	s.places.beside = s.cfg.EngineName()
	return &podBridge{cfg: s.cfg, engine: s.Engine, host: s.Host, pods: s.Pods, places: s.places, kernel: s.PodLinks, links: links,
		attacher: newAttacher(s, links), collect: collector{links, s.Engine, s.Clock}, announcer: announcer{s.Node}, repairer: newRepairer(s), changed: s.wake.Send}
}

// Make implements Maker.
func (b *podBridge) Make(ctx context.Context, in Input) (Made, error) {
	s := in.State
	networks, err := b.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if err := b.links.LoadOnce(ctx); err != nil {
		return Made{}, err
	}
	made := Made{Warning: overlapping(s, networks, in.Surroundings, b.cfg.Platform)}
	if in.Surroundings.Named(s.Links.Bridge) == nil && made.Warning.Reason != "" { // it would take addresses that others use
		return Made{}, refuse(made.Warning.Reason, errors.New(made.Warning.Message))
	}
	former := b.former(s, in.Surroundings)
	if ours := named(networks, b.cfg.EngineName()); ours != nil && Ours(*ours, b.cfg.EngineName()) {
		if made.Found, err = b.leave(ctx, *ours, *s.Links); err != nil {
			return made, err
		}
		if made.Found != nil && !SameSubnets(made.Found.Subnets, s.Links.Subnets()) {
			former = made.Found.Subnets
		}
	}
	if former != nil {
		if err := b.links.Load(ctx); err != nil {
			return made, err
		}
		return b.keepServing(ctx, in, former, made.Found)
	}
	if err := b.dropFormer(s, in.Surroundings, made.Found); err != nil {
		return made, err
	}
	var others podlink.Others
	if made.Found != nil {
		members, err := b.engine.Members(ctx, made.Found.Name)
		if err != nil {
			return made, err
		}
		others.Gives = true
		for _, addrs := range members {
			others.Addrs = append(others.Addrs, addrs...)
		}
	}
	s.Rules = guarded(in.Facts, made.Found, s.Rules)
	if err := b.apply(ctx, s); err != nil {
		return made, err
	}
	if err := b.announcer.announce(ctx, in.Annotations, s); err != nil {
		return made, err
	}
	b.links.Use(*s.Links, others)
	made.State = s
	return made, b.links.Load(ctx) // the bridge exists, so ports can be reconnected
}

// apply creates the bridge and the rest of the host's configuration.
func (b *podBridge) apply(ctx context.Context, s State) error {
	if err := b.kernel.MakeBridge(*s.Links); err != nil {
		return err
	}
	return b.host.Apply(ctx, s)
}

// leave removes the engine's network and returns nil. The engine keeps it while pods use it.
func (b *podBridge) leave(ctx context.Context, n pod.EngineNetwork, s podlink.Network) (*pod.EngineNetwork, error) {
	members, err := b.engine.Members(ctx, n.Name)
	if err != nil || len(members) > 0 {
		return &n, err
	}
	if err := b.kernel.MakeBridge(s); err != nil { // it is deleted with the network; this records its hardware address for the next one
		return &n, err
	}
	if err := b.engine.RemoveNetwork(ctx, n.Name); err != nil {
		klog.InfoS("The engine keeps its network for pods; trying again", "network", n.Name, "reason", err.Error())
		return &n, nil
	}
	klog.InfoS("Removed the engine's network: the kubelet makes the pods' interfaces", "network", n.Name)
	return nil, nil
}

// former are the ranges of the existing bridge if our pods have addresses outside the Node's ranges; otherwise nil.
func (b *podBridge) former(s State, around Surroundings) []netip.Prefix {
	inside := func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Links.Subnets(), func(p netip.Prefix) bool { return p.Contains(a) })
	}
	outside := slices.ContainsFunc(b.links.Records(), func(r podlink.Record) bool {
		return slices.ContainsFunc(r.Addrs, func(a netip.Addr) bool { return !inside(a) })
	})
	if !outside {
		return nil
	}
	return around.PodBridge()
}

// dropFormer removes a bridge with an address in a range that the Node no longer has. No pod uses it.
func (b *podBridge) dropFormer(s State, around Surroundings, engine *pod.EngineNetwork) error {
	stale := slices.ContainsFunc(around.PodBridge(), func(p netip.Prefix) bool { return !slices.Contains(s.Links.Subnets(), p) })
	if !stale || engine != nil {
		return nil
	}
	klog.InfoS("Recreating the pods' bridge for another range", "bridge", s.Links.Bridge, "ranges", Join(s.Links.Subnets()))
	return b.kernel.RemoveBridge(s.Links.Bridge)
}

// keepServing continues to serve pods whose range is no longer the Node's, and refuses new ones.
func (b *podBridge) keepServing(ctx context.Context, in Input, former []netip.Prefix, engine *pod.EngineNetwork) (Made, error) {
	refusal := fmt.Errorf("the Node's pod CIDR is %s, but pods run on %s with %s; drain this node, and the kubelet will change the range",
		Join(in.State.Links.Subnets()), in.State.Links.Bridge, Join(former))
	facts := in.Facts
	facts.PodCIDRs = nil
	for _, p := range former {
		facts.PodCIDRs = append(facts.PodCIDRs, p.String())
	}
	var made Made
	old, err := Plan(b.cfg, facts)
	if err == nil && old.Ready.Ready {
		old.Rules = guarded(facts, engine, old.Rules)
		if err = b.apply(ctx, old); err == nil {
			old.Ready = Condition{Reason: rangeChanged, Message: refusal.Error()}
			made.State = old
		}
	}
	return made, refuse(rangeChanged, errors.Join(refusal, err))
}

// Reapply implements Maker.
func (b *podBridge) Reapply(ctx context.Context, s State) error {
	if s.Links == nil {
		return nil
	}
	return errors.Join(b.apply(ctx, s), b.links.Load(ctx))
}

// Reconnect implements Maker: it recreates interfaces that others have removed, with the same addresses.
func (b *podBridge) Reconnect(ctx context.Context, made Made) error {
	repaired, err := b.links.Repair(ctx)
	for _, r := range repaired {
		klog.InfoS("Restored the network interface of a pod that had lost it", "container", r.Container, "addresses", r.Addrs)
		if at, known := b.places.of(r.Container); known {
			b.pods.Event(at.namespace, at.name, string(at.uid), v1.EventTypeWarning, "NetworkReconnected",
				fmt.Sprintf("Restored the pod's network interface with the same addresses %v, after it had been removed", r.Addrs))
		}
	}
	return errors.Join(err, reconnect(ctx, b.repairer, made))
}

// Run implements Maker: it watches the ports, and collects those of removed containers.
func (b *podBridge) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		err := b.kernel.Watch(ctx, func(port string) {
			if b.links.Lost(port) {
				b.changed()
			}
		})
		if err != nil {
			klog.ErrorS(err, "Cannot watch pods' interfaces; they are repaired by comparison only")
		}
	})
	b.collect.once(ctx)
	b.collect.run(ctx)
}

// Attacher implements Maker.
func (b *podBridge) Attacher() pod.Attacher { return b.attacher }

// keepsLinks refuses a bridge of the engine while pods have interfaces that the kubelet created: the engine would assign their addresses to others.
func keepsLinks(around Surroundings) error {
	var names []string
	for _, l := range around.Links {
		if podlink.IsPort(l.Name) {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return refuse(podsOnLinks, fmt.Errorf("%d pods run on interfaces that the kubelet made (%s): drain this node, or start the kubelet with --pod-interfaces=%s again",
		len(names), strings.Join(names[:min(len(names), 3)], ", "), ByKubelet))
}
