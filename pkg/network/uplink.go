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

// labelUplink kept the Uplink on the engine's network before a file did.
const labelUplink = "io.winkube.uplink"

const (
	// settling is how long Windows may take to move the settings from the network adapter to that of the switch.
	settling = 10 * time.Second
	// restorations is how often settings are restored before the network is abandoned.
	restorations = 3
)

// uplinkGuard ensures that creating a network does not cost the host its own address permanently. It is done when the host is seen to have all its
// former settings. Only one goroutine uses it.
type uplinkGuard struct {
	windows Windows
	clock   clock.Clock
	node    Node
	nodeIPs []netip.Addr
	kept    noteFile
	lasting bool // the network and the note survive a reboot

	want  *Uplink   // nil: nothing to guard
	seen  bool      // the network was looked up once
	made  bool      // in this run
	since time.Time // of the loss; zero: none
	tries int
	lost  error // why no more networks are created
}

// newUplinkGuard returns the guard of a network; lasting says that HNS keeps the network over a reboot.
func newUplinkGuard(s shared, lasting bool) *uplinkGuard {
	return &uplinkGuard{windows: s.Windows, clock: s.Clock, node: s.Node, nodeIPs: s.cfg.NodeIPs, kept: noteFile(s.cfg.UplinkFile), lasting: lasting}
}

// lacks describes what an interface has lost, or returns ""; have is nil if no interface has the node's address.
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

// save records the node's interface before the engine creates the network want, or reads the earlier record.
func (g *uplinkGuard) save(networks []pod.EngineNetwork, want pod.EngineNetwork) error {
	have := named(networks, want.Name)
	defer func() { g.seen = true }()
	switch {
	case len(g.nodeIPs) == 0:
	case have != nil && !g.seen:
		var err error
		if g.want, err = g.recall(have.Labels[labelUplink]); err != nil {
			return err
		}
	case have == nil && g.want == nil:
		return g.begin(want.Subnets)
	}
	return nil
}

// note records, once in each run, the host's settings before a network of HNS is created, without the addresses in subnet. A record of an earlier run
// takes precedence. If the network already exists, the first comparison shows that nothing was lost.
func (g *uplinkGuard) note(subnet netip.Prefix) error {
	if g.seen || len(g.nodeIPs) == 0 {
		return nil
	}
	noted, err := g.recall("")
	if err != nil {
		return err
	}
	if noted == nil {
		err = g.begin([]netip.Prefix{subnet})
	} else {
		g.want, g.made = noted, !g.lasting
	}
	g.seen = err == nil
	return err
}

// begin records the host's settings, without addresses in subnets, before a network is created.
func (g *uplinkGuard) begin(subnets []netip.Prefix) error {
	u, err := g.read()
	if err != nil {
		return err
	}
	if u != nil {
		u.Addresses = slices.DeleteFunc(u.Addresses, func(p netip.Prefix) bool {
			return slices.ContainsFunc(subnets, func(c netip.Prefix) bool { return c.Contains(p.Addr()) })
		})
		if err := g.kept.write(*u); err != nil {
			return err
		}
	}
	g.want, g.made = u, true
	return nil
}

// recall returns the record of an earlier run, from the file or else from a label, if the node still has that address; otherwise nil.
func (g *uplinkGuard) recall(label string) (*Uplink, error) {
	u, err := g.kept.read()
	if err != nil {
		return nil, err
	}
	if u == nil {
		u = &Uplink{}
		if json.Unmarshal([]byte(label), u) != nil {
			return nil, nil
		}
	}
	if !slices.ContainsFunc(u.Addresses, func(p netip.Prefix) bool { return p.Addr() == g.nodeIPs[0] }) {
		return nil, nil
	}
	return u, nil
}

func (g *uplinkGuard) read() (*Uplink, error) {
	u, err := g.windows.Uplink(g.nodeIPs[0])
	if err != nil {
		return nil, fmt.Errorf("cannot save the host's settings before creating the network: %w", err)
	}
	return u, nil
}

// verify compares the host with the record, and restores it, until the host has once had all settings. If a network created in this run costs the
// host its address permanently, verify removes it with remove.
func (g *uplinkGuard) verify(ctx context.Context, network string, remove func(context.Context) error) error {
	if g.want == nil {
		return nil
	}
	have, err := g.windows.Uplink(g.nodeIPs[0])
	if err != nil {
		return fmt.Errorf("cannot check whether the host still has its address: %w", err)
	}
	lost := g.want.lacks(have)
	now := g.clock.Now()
	switch {
	case lost == "":
		if g.tries > 0 {
			g.node.Event(v1.EventTypeNormal, "HostAddressRestored", fmt.Sprintf("Restored the settings of %q, which Windows had removed", g.want.Interface))
		}
		g.want, g.made, g.since, g.tries = nil, false, time.Time{}, 0
		if !g.lasting {
			return g.kept.remove()
		}
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

// rollBack removes the created network: Windows then restores the adapter's settings (microsoft/SDN#498).
func (g *uplinkGuard) rollBack(ctx context.Context, network, lost string, remove func(context.Context) error) error {
	if err := errors.Join(remove(ctx), g.kept.remove()); err != nil {
		return err
	}
	g.lost = fmt.Errorf("creating network %q removed %s from the host, so the network was deleted; restore the settings of %q and name another adapter (--interface) or kind (--windows-network), then restart the kubelet",
		network, lost, g.want.Interface)
	g.node.Event(v1.EventTypeWarning, addressLost, g.lost.Error())
	return g.lost
}
