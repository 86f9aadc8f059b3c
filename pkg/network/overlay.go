package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/network/endpoints"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// planOverlay: HNS makes the network and its distributed router, which has the gateway's address; the pods' endpoints are ours, since Docker has
// overlay networks in swarms only. The range's third address is the source VIP of the service proxy (hns.SourceVIP).
func planOverlay(cfg Config, facts Facts) (State, error) {
	s, err := planWindows(cfg, facts)
	if err != nil || !s.Ready.Ready {
		return s, err
	}
	c := s.Network.Subnets[0]
	if c.Bits() > 29 {
		return s, fmt.Errorf("spec.podCIDRs has %s, which has no room for HNS' router, the service proxy and pods; want at most 29 bits", c)
	}
	i := slices.IndexFunc(cfg.NodeIPs, netip.Addr.Is4)
	if i < 0 {
		return s, fmt.Errorf("network mode %s needs an address of this node (--node-ip) in the family of its pod CIDR %s; there is none", Overlay, c)
	}
	o := hns.Overlay{Name: vxlan.DeviceName(true), Subnet: c, Gateway: c.Addr().Next(), VNI: vxlan.VNI, Adapter: cfg.Adapter, Provider: cfg.NodeIPs[i], Keep: keptInside(cfg, c)}
	if o.Adapter == "" {
		o.Adapter = BelowAdapter(facts.Adapter)
	}
	for _, p := range cfg.Services {
		if p.Addr().Is4() {
			o.Services = append(o.Services, p.Masked())
		}
	}
	s.Join, s.Network, s.Overlay = noEngineNetwork, nil, &o
	return s, nil
}

// overlay is the Maker of mode overlay on Windows: a network of HNS, whose end of the tunnel the Node announces, and the pods' endpoints on it.
type overlay struct {
	cfg       Config
	engine    Engine
	windows   Windows
	node      Node
	announcer announcer
	uplink    *uplinkGuard
	endpoints *endpoints.Endpoints
	attacher  *attacher
	collect   collector
	stopper   *stopper
	unreached bool // that the host does not reach its pods was reported
}

func newOverlay(s shared) Maker {
	made := endpoints.New(s.Windows, vxlan.DeviceName(true))
	return &overlay{cfg: s.cfg, engine: s.Engine, windows: s.Windows, node: s.Node, announcer: announcer{s.Node}, uplink: newUplinkGuard(s),
		endpoints: made, attacher: newAttacher(s, made), collect: collector{made, s.Engine, s.Clock}, stopper: newStopper(s)}
}

// Make implements Maker.
func (o *overlay) Make(ctx context.Context, in Input) (Made, error) {
	networks, err := o.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if o.uplink.lost != nil {
		return Made{}, refuse(addressLost, o.uplink.lost)
	}
	if err := o.leaveEngine(ctx, networks); err != nil {
		return Made{}, err
	}
	if wrong := lacksAdapter(o.cfg, in.Surroundings); wrong.Reason != "" {
		return Made{}, refuse(wrong.Reason, errors.New(wrong.Message))
	}
	if err := o.uplink.note(); err != nil {
		return Made{}, err
	}
	s := in.State
	mac, err := o.makeNetwork(ctx, *s.Overlay)
	if err != nil {
		return Made{}, err
	}
	o.endpoints.Use(*s.Overlay)
	if err := o.endpoints.Load(ctx); err != nil {
		return Made{}, err
	}
	mtu := in.Facts.MTU
	if mtu == 0 {
		mtu = usualMTU
	}
	d := vxlan.NewDevice(s.Overlay.Subnet, s.Overlay.Provider, mtu)
	d.MAC = mac
	s.Devices = []vxlan.Device{d}
	if err := o.announcer.announce(ctx, in.Annotations, s); err != nil {
		return Made{}, err
	}
	return Made{State: s}, nil
}

// makeNetwork makes the network in HNS and returns the hardware address of its end of the tunnel. A network that differs is replaced unless pods
// use it.
func (o *overlay) makeNetwork(ctx context.Context, want hns.Overlay) (vxlan.MAC, error) {
	mac, err := o.windows.MakeOverlay(want)
	if errors.Is(err, hns.ErrNoHostRoute) {
		o.reportUnreached(err)
		err = nil
	}
	if errors.Is(err, hns.ErrDiffers) {
		if used := removeOverlay(o.windows); used != nil {
			return mac, refuse(rangeChanged, errors.Join(err, used))
		}
		return mac, fmt.Errorf("%w; it was removed and is being recreated", err)
	}
	if err == nil || errors.Is(err, hns.ErrUnsettled) || errors.Is(err, hns.ErrElsewhere) { // there is a network, which may have cost the host its address
		remove := func(context.Context) error { return o.windows.RemoveOverlay(want.Name) }
		err = errors.Join(err, o.uplink.verify(ctx, want.Name, remove))
	}
	if o.uplink.lost != nil {
		return mac, refuse(addressLost, o.uplink.lost)
	}
	return mac, err
}

// Reapply implements Maker: HNS restores its network itself, or a whole Make is needed.
func (o *overlay) Reapply(context.Context, State) error { return nil }

// Reconnect implements Maker: HNS loses endpoints when it crashes. Their containers are stopped.
func (o *overlay) Reconnect(ctx context.Context, made Made) error {
	lost, cut := o.endpoints.Lost(), map[string]time.Time{}
	for _, container := range lost {
		cut[container] = o.stopper.cutSince(container)
	}
	o.stopper.cut = cut
	err := o.stopper.stop(ctx, made.State.Overlay.Name)
	stopped := slices.DeleteFunc(lost, func(container string) bool { _, waits := cut[container]; return waits })
	o.endpoints.Stopped(stopped)
	return err
}

// Run implements Maker.
func (o *overlay) Run(ctx context.Context) {
	o.collect.once(ctx)
	o.collect.run(ctx)
}

// Attacher implements Maker.
func (o *overlay) Attacher() pod.Attacher { return o.attacher }

// reportUnreached says once that the kubelet's probes do not reach pods.
func (o *overlay) reportUnreached(err error) {
	if o.unreached {
		return
	}
	o.unreached = true
	klog.ErrorS(err, "This host cannot reach its own pods")
	o.node.Event(v1.EventTypeWarning, "HostRouteRefused", err.Error())
}

// leaveEngine removes the engine's network of a former mode, which occupies the adapter: one carries networks of one kind (microsoft/SDN#300). The
// engine refuses while containers use it.
func (o *overlay) leaveEngine(ctx context.Context, networks []pod.EngineNetwork) error {
	i := slices.IndexFunc(networks, func(n pod.EngineNetwork) bool { return n.Labels[LabelPods] != "" })
	if i < 0 {
		return nil
	}
	if err := o.engine.RemoveNetwork(ctx, networks[i].Name); err != nil {
		return fmt.Errorf("pods run on the engine's network %q, which conflicts with an overlay; drain this node, and the kubelet will remove it: %w", networks[i].Name, err)
	}
	return nil
}

// removeOverlay removes the overlay network unless pods have endpoints on it. A Windows without overlays, or without this one, is no error.
func removeOverlay(windows Windows) error {
	name := vxlan.DeviceName(true)
	list, err := windows.PodEndpoints(name)
	if errors.Is(err, hns.ErrOld) {
		return nil
	}
	if err != nil {
		return err
	}
	if used := slices.IndexFunc(list, func(e hns.PodEndpoint) bool { return len(e.Attached) > 0 }); used >= 0 {
		return fmt.Errorf("pods run on the overlay network %q; drain this node, and the kubelet will remove it (container %.12s has %s)", name, list[used].Container, list[used].Addr)
	}
	return windows.RemoveOverlay(name)
}
