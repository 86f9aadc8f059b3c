package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/vxlan"
)

// planOverlay plans a network of HNS with its distributed router, which has the gateway's address. We create the pods' endpoints, since Docker has
// overlay networks only in swarms. The range's third address is the source VIP of the service proxy (hns.SourceVIP).
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
	o := hns.Overlay{Name: vxlan.DeviceName(true), Subnet: c, Gateway: c.Addr().Next(), VNI: vxlan.VNI, Adapter: cfg.Adapter, Provider: cfg.NodeIPs[i], Keep: keptInside(cfg, facts, c)}
	if o.Adapter == "" {
		o.Adapter = BelowAdapter(facts.Adapter)
	}
	for _, p := range facts.services(cfg) {
		if p.Addr().Is4() {
			o.Services = append(o.Services, p.Masked())
		}
	}
	s.Join, s.Network, s.Overlay = noEngineNetwork, nil, &o
	return s, nil
}

// overlay is the Maker of mode overlay on Windows: a network of HNS, whose tunnel end the Node announces, and the pods' endpoints on it.
type overlay struct {
	cfg       Config
	engine    Engine
	windows   Windows
	node      Node
	announcer announcer
	uplink    *uplinkGuard
	ownEndpoints
	left      bool // the bridge of a former mode was removed
	unreached bool // it was reported that the host cannot reach its pods
}

func newOverlay(s shared) Maker {
	return &overlay{cfg: s.cfg, engine: s.Engine, windows: s.Windows, node: s.Node, announcer: announcer{s.Node}, uplink: newUplinkGuard(s, false),
		ownEndpoints: newOwnEndpoints(s, vxlan.DeviceName(true))}
}

// Make implements Maker.
func (o *overlay) Make(ctx context.Context, in Input) (Made, error) {
	s := in.State
	networks, err := o.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if o.uplink.lost != nil {
		return Made{}, refuse(addressLost, o.uplink.lost)
	}
	if err := leaveEngine(ctx, o.engine, networks, o.cfg.EngineName(), ""); err != nil {
		return Made{}, err
	}
	if !o.left {
		if err := leaveBridge(o.windows, o.cfg.EngineName()); err != nil {
			return Made{}, err
		}
		o.left = true
	}
	if wrong := lacksAdapter(o.cfg, in.Surroundings); wrong.Reason != "" {
		return Made{}, refuse(wrong.Reason, errors.New(wrong.Message))
	}
	if err := o.uplink.note(s.Overlay.Subnet); err != nil {
		return Made{}, err
	}
	mac, err := o.makeNetwork(ctx, *s.Overlay)
	if err != nil {
		return Made{}, err
	}
	o.endpoints.Use(s.Overlay.Pods())
	if err := errors.Join(o.endpoints.Load(ctx), o.windows.CompleteEndpoints(*s.Overlay)); err != nil {
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

// makeNetwork creates the network in HNS and returns the hardware address of its tunnel end. It replaces a network that differs unless pods use it.
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
	if err == nil || errors.Is(err, hns.ErrUnsettled) || errors.Is(err, hns.ErrElsewhere) { // the network exists, and may have cost the host its address
		remove := func(context.Context) error { return o.windows.RemoveOverlay(want.Name) }
		err = errors.Join(err, o.uplink.verify(ctx, want.Name, remove))
	}
	if o.uplink.lost != nil {
		return mac, refuse(addressLost, o.uplink.lost)
	}
	return mac, err
}

// Reapply implements Maker: HNS restores its network itself, or needs a whole Make.
func (o *overlay) Reapply(context.Context, State) error { return nil }

// reportUnreached reports once that the kubelet's probes do not reach pods.
func (o *overlay) reportUnreached(err error) {
	if o.unreached {
		return
	}
	o.unreached = true
	klog.ErrorS(err, "This host cannot reach its own pods")
	o.node.Event(v1.EventTypeWarning, "HostRouteRefused", err.Error())
}

// removeOverlay removes the overlay network unless pods have endpoints on it. A Windows without overlays, or without this one, is not an error.
func removeOverlay(windows Windows) error {
	return removeUnused(windows, vxlan.DeviceName(true), windows.RemoveOverlay)
}

// removeUnused removes a network of HNS unless it has pod endpoints of ours. A Windows without such networks, or without this one, is not an error.
func removeUnused(windows Windows, name string, remove func(name string) error) error {
	list, err := windows.PodEndpoints(name)
	if errors.Is(err, hns.ErrOld) {
		return nil
	}
	if err != nil {
		return err
	}
	if used := slices.IndexFunc(list, func(e hns.PodEndpoint) bool { return len(e.Attached) > 0 }); used >= 0 {
		return fmt.Errorf("pods run on the network %q; drain this node, and the kubelet will remove it (container %.12s has %s)", name, list[used].Container, list[used].Addr)
	}
	return remove(name)
}
