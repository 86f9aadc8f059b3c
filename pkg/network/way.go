package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/report"
)

// Way is what another program of this host tells of the way to other nodes.
type Way interface {
	// Read returns what stands in the way now.
	Read() ([]report.Trouble, error)
	// Watch calls changed after each change until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// way is what the proxy of this host says is wrong with the way to other nodes, and to which ranges of theirs that leads.
func (m *Manager) way() (c Condition, to []netip.Prefix) {
	if m.parts.Way == nil {
		return c, nil
	}
	list, err := m.parts.Way.Read()
	if err != nil {
		klog.ErrorS(err, "The way to other nodes is taken to be as it should")
	}
	var messages []string
	for _, t := range list {
		if c.Reason == "" {
			c.Reason = t.Reason
		}
		messages = append(messages, t.Message)
		if t.To.IsValid() {
			to = append(to, t.To)
		}
	}
	c.Message = strings.Join(messages, "; ")
	return c, to
}

// followWay has everything compared when the proxy has something else to say.
func (m *Manager) followWay(ctx context.Context) {
	if err := m.parts.Way.Watch(ctx, m.Kick); err != nil {
		klog.ErrorS(err, "What the proxy says of the way to other nodes is read by comparison only", "every", m.every())
	}
}

// probe sends packets from where pods send theirs: to the API server, and to those pods' ranges that could not be reached.
func (m *Manager) probe(ctx context.Context, s State, to []netip.Prefix) error {
	if m.parts.Probe == nil {
		return nil
	}
	from := netip.Addr{}
	if len(s.Gateways) > 0 {
		from = s.Gateways[0].Address.Addr()
	}
	if err := m.parts.Probe(ctx, from); err != nil {
		return err
	}
	for _, p := range to {
		from := netip.Addr{}
		if i := slices.IndexFunc(s.Gateways, func(g Gateway) bool { return g.Address.Addr().Is4() == p.Addr().Is4() }); i >= 0 {
			from = s.Gateways[i].Address.Addr()
		}
		if err := m.parts.ProbeTo(ctx, from, p); err != nil {
			return fmt.Errorf("no way to the pods of %s: %w", p, err)
		}
	}
	return nil
}
