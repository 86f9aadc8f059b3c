package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// Uplink is what the node's interface has by hand. Windows loses it at times when a virtual switch takes the adapter (microsoft/SDN#498,
// kubernetes-sigs/sig-windows-tools#162).
type Uplink struct {
	Interface string         `json:"interface"`
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"` // next hops of its default routes
	DNS       []netip.Addr   `json:"dns,omitempty"`
}

// LabelUplink keeps the Uplink on the engine's network: it is what a kubelet that was killed, or a reboot, leaves to the next.
const LabelUplink = "io.winkube.uplink"

const (
	// settling is how long Windows may take to give the switch's adapter what its network adapter had.
	settling = 10 * time.Second
	// restorations is how often settings are put back before the network is given up.
	restorations = 3
)

// guarded is an Uplink that is not known yet to have outlived the making of the network.
type guarded struct {
	want   *Uplink   // nil: nothing to guard
	seen   bool      // the network was looked for once
	made   bool      // in this run
	since  time.Time // of the loss; zero: none
	tries  int
	ruined error // why no network is made any more
}

// lacks names what an interface has no more; have is nil where no interface has the node's address.
func (u *Uplink) lacks(have *Uplink) string {
	if have == nil {
		return fmt.Sprintf("addresses %s", join(u.Addresses))
	}
	lost := func(a netip.Addr, list []netip.Addr) bool { return !slices.Contains(list, a) }
	for _, p := range u.Addresses {
		if !slices.Contains(have.Addresses, p) {
			return fmt.Sprintf("address %s", p)
		}
	}
	for _, a := range u.Gateways {
		if lost(a, have.Gateways) {
			return fmt.Sprintf("the default route by %s", a)
		}
	}
	for _, a := range u.DNS {
		if lost(a, have.DNS) {
			return fmt.Sprintf("DNS server %s", a)
		}
	}
	return ""
}

// save notes the node's interface before the network is made, or reads what was noted then.
func (m *Manager) save(networks []pod.EngineNetwork, s *State) error {
	g := &m.guard
	if len(m.cfg.NodeIPs) == 0 || s.Network == nil {
		return nil
	}
	i := slices.IndexFunc(networks, func(n pod.EngineNetwork) bool { return n.Name == s.Network.Name })
	switch {
	case i >= 0 && !g.seen:
		var u Uplink
		if json.Unmarshal([]byte(networks[i].Labels[LabelUplink]), &u) == nil &&
			slices.ContainsFunc(u.Addresses, func(p netip.Prefix) bool { return p.Addr() == m.cfg.NodeIPs[0] }) {
			g.want = &u
		}
	case i < 0 && g.want == nil:
		u, err := m.parts.Host.Uplink(m.cfg.NodeIPs[0])
		if err != nil {
			return fmt.Errorf("cannot note the host's own address, which a new network may cost: %w", err)
		}
		if u != nil {
			u.Addresses = slices.DeleteFunc(u.Addresses, func(p netip.Prefix) bool {
				return slices.ContainsFunc(s.Network.Subnets, func(c netip.Prefix) bool { return c.Contains(p.Addr()) })
			})
		}
		g.want, g.made = u, true
	}
	g.seen = true
	if i < 0 && g.want != nil {
		text, err := json.Marshal(g.want)
		if err != nil {
			return err
		}
		s.Network.Labels[LabelUplink] = string(text)
	}
	return nil
}

// verify holds the host to what save noted, until it has been seen there once. A network that costs the host its address for good is removed.
func (m *Manager) verify(ctx context.Context, s State) error {
	g := &m.guard
	if g.want == nil {
		return nil
	}
	have, err := m.parts.Host.Uplink(m.cfg.NodeIPs[0])
	if err != nil {
		return fmt.Errorf("cannot see whether the host still has its address: %w", err)
	}
	lost := g.want.lacks(have)
	now := m.parts.Clock.Now()
	switch {
	case lost == "":
		if g.tries > 0 {
			m.event(v1.EventTypeNormal, "HostAddressRestored", fmt.Sprintf("the settings of %q, which Windows had lost, are restored", g.want.Interface))
		}
		*g = guarded{seen: true}
		return nil
	case g.since.IsZero():
		g.since = now
	}
	if now.Sub(g.since) < settling {
		return fmt.Errorf("the host lacks %s since the network was made; it is put back if that lasts %s", lost, settling)
	}
	if g.tries == restorations && g.made {
		return m.rollBack(ctx, s, lost)
	}
	g.tries++
	klog.InfoS("The host's settings are put back", "interface", g.want.Interface, "lost", lost, "try", g.tries)
	return errors.Join(fmt.Errorf("the host lacks %s", lost), m.parts.Host.Restore(ctx, *g.want))
}

// rollBack removes the network that was made: Windows gives the adapter its settings back then (microsoft/SDN#498).
func (m *Manager) rollBack(ctx context.Context, s State, lost string) error {
	var name string
	var err error
	if s.Overlay != nil {
		name, err = s.Overlay.Name, m.over.host.RemoveOverlay(s.Overlay.Name)
	} else {
		name, err = s.Network.Name, m.parts.Engine.RemoveNetwork(ctx, s.Network.Name)
	}
	if err != nil {
		return err
	}
	m.guard.ruined = fmt.Errorf("network %q cost the host %s and was removed; give %q its settings again and name another adapter (--interface) or kind (--windows-network), then restart the kubelet",
		name, lost, m.guard.want.Interface)
	m.event(v1.EventTypeWarning, addressLost, m.guard.ruined.Error())
	return m.guard.ruined
}

func (m *Manager) event(kind, reason, message string) {
	if m.parts.Event != nil {
		m.parts.Event(kind, reason, message)
	}
}
