package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// overlaid is what mode Overlay has beside where the host has Overlays.
type overlaid struct {
	host      Overlays   // nil: it has none
	endpoints *endpoints // the mode is Overlay: then they are the Plugins too
	unreached bool       // that the host does not reach its pods was told
	left      bool       // the network of a former mode was looked for
}

func newOverlaid(host Host, mode Mode) (o overlaid) {
	o.host, _ = host.(Overlays)
	if o.host != nil && mode == Overlay {
		o.endpoints = newEndpoints(o.host, vxlan.DeviceName(true))
	}
	return o
}

// tunnelled brings mode Overlay about where the host has overlay networks of its own: the network, its end as the others are told of it, and the
// pods' endpoints. mtu is that of the host's interface, in bytes.
func (m *Manager) tunnelled(ctx context.Context, s State, mtu int, networks []pod.EngineNetwork, around Surroundings) (Condition, error) {
	if err := m.leaveEngine(ctx, networks); err != nil {
		return Condition{}, m.failed(err)
	}
	if wrong := m.lacksAdapter(around); wrong.Reason != "" {
		return m.refused(wrong.Reason, errors.New(wrong.Message))
	}
	if err := m.guardUplink(); err != nil {
		return Condition{}, m.failed(err)
	}
	mac, err := m.over.host.MakeOverlay(*s.Overlay)
	if errors.Is(err, hns.ErrNoHostRoute) {
		m.tellUnreached(err)
		err = nil
	}
	if errors.Is(err, hns.ErrDiffers) {
		if used := m.removeOverlay(); used != nil {
			return m.refused(rangeChanged, errors.Join(err, used))
		}
		return Condition{}, m.failed(fmt.Errorf("%w; it was removed, to be made anew", err))
	}
	if err == nil || errors.Is(err, hns.ErrUnsettled) || errors.Is(err, hns.ErrElsewhere) { // there is a network, which may have cost the host its address
		err = errors.Join(err, m.verify(ctx, s))
	}
	if m.guard.ruined != nil {
		return m.refused(addressLost, m.guard.ruined)
	}
	if err != nil {
		return Condition{}, m.failed(err)
	}
	m.over.endpoints.use(*s.Overlay)
	if _, _, err := m.over.endpoints.Load(ctx); err != nil {
		return Condition{}, m.failed(err)
	}
	if mtu == 0 {
		mtu = usualMTU
	}
	d := vxlan.NewDevice(s.Overlay.Subnet, s.Overlay.Provider, mtu)
	d.MAC = mac
	s.Devices = []vxlan.Device{d}
	if err := m.announce(ctx, s); err != nil {
		return Condition{}, m.failed(err)
	}
	m.done(s, nil)
	now := m.parts.Clock.Now()
	m.cut = m.over.endpoints.cut(m.cut, now)
	err = m.end(ctx, m.cut, now, s.Overlay.Name)
	m.over.endpoints.ended(m.cut)
	return Condition{}, err
}

// guardUplink notes what the host has before the network is made, in each run: nothing of ours outlives the network but that. One that is there
// already is seen to have cost nothing at once.
func (m *Manager) guardUplink() error {
	if m.guard.seen {
		return nil
	}
	u, err := m.parts.Host.Uplink(m.cfg.NodeIPs[0])
	if err != nil {
		return fmt.Errorf("cannot note the host's own address, which a new network may cost: %w", err)
	}
	m.guard = guarded{want: u, seen: true, made: true}
	return nil
}

// tellUnreached says once that probes of the kubelet do not reach pods.
func (m *Manager) tellUnreached(err error) {
	if m.over.unreached {
		return
	}
	m.over.unreached = true
	klog.ErrorS(err, "This host does not reach its own pods")
	m.event(v1.EventTypeWarning, "HostRouteRefused", err.Error())
}

// leaveEngine removes the engine's network of a former mode, which has the adapter: one carries networks of one kind (microsoft/SDN#300). The engine
// does not while containers use it.
func (m *Manager) leaveEngine(ctx context.Context, networks []pod.EngineNetwork) error {
	i := slices.IndexFunc(networks, func(n pod.EngineNetwork) bool { return n.Labels[LabelPods] != "" })
	if i < 0 {
		return nil
	}
	if err := m.parts.Engine.RemoveNetwork(ctx, networks[i].Name); err != nil {
		return fmt.Errorf("pods run on the engine's network %q, beside which there is no overlay; drain this node, then it is removed: %w", networks[i].Name, err)
	}
	return nil
}

// leaveOverlay removes the overlay network of a former mode once no pod has an endpoint on it.
func (m *Manager) leaveOverlay() error {
	if m.over.left || m.cfg.Mode == Overlay {
		return nil
	}
	err := m.removeOverlay()
	m.over.left = err == nil
	return err
}

// removeOverlay removes the overlay network where the host has one, unless pods have endpoints on it.
func (m *Manager) removeOverlay() error {
	if m.over.host == nil {
		return nil
	}
	name := vxlan.DeviceName(true)
	list, err := m.over.host.PodEndpoints(name)
	if errors.Is(err, hns.ErrOld) { // there are no overlays
		return nil
	}
	if err != nil {
		return err
	}
	if used := slices.IndexFunc(list, func(e hns.PodEndpoint) bool { return len(e.Attached) > 0 }); used >= 0 {
		return fmt.Errorf("pods run on the overlay network %q; drain this node, then it is removed (container %.12s has %s)", name, list[used].Container, list[used].Addr)
	}
	return m.over.host.RemoveOverlay(name)
}
