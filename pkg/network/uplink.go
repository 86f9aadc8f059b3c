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
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// Uplink are the static settings of the node's interface. Windows sometimes loses them when a virtual switch takes the adapter (microsoft/SDN#498,
// kubernetes-sigs/sig-windows-tools#162).
type Uplink struct {
	Interface string         `json:"interface"`
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"` // next hops of its default routes
	DNS       []netip.Addr   `json:"dns,omitempty"`
}

// LabelUplink keeps the Uplink on the engine's network, for the next kubelet after a kill or a reboot.
const LabelUplink = "io.winkube.uplink"

const (
	// settling is how long Windows may take to move the settings from the network adapter to that of the switch.
	settling = 10 * time.Second
	// restorations is how often settings are restored before the network is given up.
	restorations = 3
)

// uplinkGuard sees to it that a network that is made does not cost the host its own address for good. It is done when the host has been seen to
// have all that it had. One goroutine uses it.
type uplinkGuard struct {
	windows Windows
	clock   clock.Clock
	node    Node
	nodeIPs []netip.Addr

	want  *Uplink   // nil: nothing to guard
	seen  bool      // the network was looked for once
	made  bool      // in this run
	since time.Time // of the loss; zero: none
	tries int
	lost  error // why no network is made any more
}

func newUplinkGuard(s shared) *uplinkGuard {
	return &uplinkGuard{windows: s.Windows, clock: s.Clock, node: s.Node, nodeIPs: s.cfg.NodeIPs}
}

// lacks names what an interface has lost; have is nil where no interface has the node's address; "": nothing.
func (u *Uplink) lacks(have *Uplink) string {
	if have == nil {
		return fmt.Sprintf("addresses %s", Join(u.Addresses))
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

// save notes the node's interface before the engine's network want is made, on its label, or reads what was noted then.
func (g *uplinkGuard) save(networks []pod.EngineNetwork, want *pod.EngineNetwork) error {
	if len(g.nodeIPs) == 0 {
		return nil
	}
	have := named(networks, want.Name)
	switch {
	case have != nil && !g.seen:
		var u Uplink
		if json.Unmarshal([]byte(have.Labels[LabelUplink]), &u) == nil &&
			slices.ContainsFunc(u.Addresses, func(p netip.Prefix) bool { return p.Addr() == g.nodeIPs[0] }) {
			g.want = &u
		}
	case have == nil && g.want == nil:
		u, err := g.read()
		if err != nil {
			return err
		}
		if u != nil {
			u.Addresses = slices.DeleteFunc(u.Addresses, func(p netip.Prefix) bool {
				return slices.ContainsFunc(want.Subnets, func(c netip.Prefix) bool { return c.Contains(p.Addr()) })
			})
		}
		g.want, g.made = u, true
	}
	g.seen = true
	if have == nil && g.want != nil {
		text, err := json.Marshal(g.want)
		if err != nil {
			return err
		}
		want.Labels[LabelUplink] = string(text)
	}
	return nil
}

// note notes, once in each run, what the host has before a network without labels is made. One that is there already is seen to have cost nothing
// in the first comparison.
func (g *uplinkGuard) note() error {
	if g.seen {
		return nil
	}
	u, err := g.read()
	if err != nil {
		return err
	}
	g.want, g.seen, g.made = u, true, true
	return nil
}

func (g *uplinkGuard) read() (*Uplink, error) {
	u, err := g.windows.Uplink(g.nodeIPs[0])
	if err != nil {
		return nil, fmt.Errorf("cannot note the host's own address, which a new network may cost: %w", err)
	}
	return u, nil
}

// verify holds the host to what was noted, until it has been seen there once. A network that was made in this run and costs the host its address
// for good is removed by remove.
func (g *uplinkGuard) verify(ctx context.Context, network string, remove func(context.Context) error) error {
	if g.want == nil {
		return nil
	}
	have, err := g.windows.Uplink(g.nodeIPs[0])
	if err != nil {
		return fmt.Errorf("cannot see whether the host still has its address: %w", err)
	}
	lost := g.want.lacks(have)
	now := g.clock.Now()
	switch {
	case lost == "":
		if g.tries > 0 {
			g.node.Event(v1.EventTypeNormal, "HostAddressRestored", fmt.Sprintf("Restored the settings of %q, which Windows had removed", g.want.Interface))
		}
		g.want, g.made, g.since, g.tries = nil, false, time.Time{}, 0
		return nil
	case g.since.IsZero():
		g.since = now
	}
	if now.Sub(g.since) < settling {
		return fmt.Errorf("the host has lost %s since the network was created; restoring them if that lasts %s", lost, settling)
	}
	if g.tries == restorations && g.made {
		return g.rollBack(ctx, network, lost, remove)
	}
	g.tries++
	klog.InfoS("Restoring the host's settings", "interface", g.want.Interface, "lost", lost, "try", g.tries)
	return errors.Join(fmt.Errorf("the host lacks %s", lost), g.windows.Restore(ctx, *g.want))
}

// rollBack removes the network that was made: Windows gives the adapter its settings back then (microsoft/SDN#498).
func (g *uplinkGuard) rollBack(ctx context.Context, network, lost string, remove func(context.Context) error) error {
	if err := remove(ctx); err != nil {
		return err
	}
	g.lost = fmt.Errorf("network %q cost the host %s and was removed; give %q its settings again and name another adapter (--interface) or kind (--windows-network), then restart the kubelet",
		network, lost, g.want.Interface)
	g.node.Event(v1.EventTypeWarning, addressLost, g.lost.Error())
	return g.lost
}
