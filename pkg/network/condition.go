package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Reasons of the Node's condition NetworkUnavailable and of its Events.
const (
	rangeMissing  = "PodCIDRMissing"
	rangeInvalid  = "PodCIDRInvalid"
	rangeChanged  = "PodCIDRChanged"
	rangeOverlaps = "PodCIDROverlaps"
	noNetwork     = "NetworkMissing"
	addressLost   = "HostAddressLost"
	noAdapter     = "AdapterMissing"
	noPlugins     = "CNINotReady"
	podsOnLinks   = "PodsOnOwnInterfaces"
	routeConflict = "RouteConflict" // reported by the proxy
)

// ownReasons are the reasons that our agents write.
var ownReasons = []string{rangeMissing, rangeInvalid, rangeChanged, rangeOverlaps, noNetwork, addressLost, noAdapter, noPlugins, podsOnLinks, routeConflict}

const (
	// patience is how long a fault must last before the condition reports it: a new Node gets its range shortly after registration.
	patience = 3 * time.Second
	// goneAfter is how long to probe an unreachable node. After that it counts as gone, so that this Node need not wait for it.
	goneAfter = time.Minute
)

// condition decides the Node's condition NetworkUnavailable from the results of comparisons and the proxy's reports.
type condition struct {
	clock   clock.Clock
	node    Node
	prober  Prober
	reports Reports

	mu    sync.Mutex
	seen  Condition      // by the last comparison; no Reason: no fault
	since time.Time      // of seen's Reason
	said  Condition      // on the Node; no Reason: never set
	to    []netip.Prefix // pod ranges of other nodes that were unreachable while the condition was set
}

// current is the condition that the Node should have; nil: leave the Node's condition unchanged.
func (c *condition) current() *Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said.Reason == "" {
		return nil
	}
	said := c.said
	return &said
}

// recall reads the condition that an earlier run set on the Node, so that this run can clear it.
func (c *condition) recall(n *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, on := range n.Status.Conditions {
		if on.Type == v1.NodeNetworkUnavailable && on.Status == v1.ConditionTrue && c.said.Reason == "" && slices.Contains(ownReasons, on.Reason) {
			c.said = Condition{Reason: on.Reason, Message: on.Message}
		}
	}
}

// judge decides the Node's condition after a comparison that found seen, with state on the host. It clears a fault only after packets have arrived.
// The error says what is wrong.
func (c *condition) judge(ctx context.Context, seen Condition, state State) error {
	var to []netip.Prefix
	if seen.Reason == "" {
		seen, to = c.reported()
	}
	c.mu.Lock()
	now := c.clock.Now()
	if seen.Reason != c.seen.Reason {
		c.since = now
	}
	c.seen = seen
	for _, p := range to {
		if !slices.Contains(c.to, p) {
			c.to = append(c.to, p)
		}
	}
	if to = slices.Clone(c.to); now.Sub(c.since) > goneAfter {
		to = nil
	}
	said, lasted := c.said, now.Sub(c.since) >= patience
	c.mu.Unlock()
	switch {
	case seen.Reason != "" && lasted && said != seen:
		c.say(v1.EventTypeWarning, seen, said.Reason != seen.Reason)
	case seen.Reason == "" && said.Reason != "" && !said.Ready:
		if err := c.probe(ctx, state, to); err != nil {
			return fmt.Errorf("the node stays marked NetworkUnavailable: %w", err)
		}
		c.say(v1.EventTypeNormal, ready("%s", state.Ready.Message), true)
	case seen.Reason == "":
		c.mu.Lock()
		c.to = nil
		c.mu.Unlock()
	}
	if seen.Reason != "" {
		return errors.New(seen.Message)
	}
	return nil
}

// say sets the condition said on the Node, and records an Event if its reason is new.
func (c *condition) say(kind string, said Condition, news bool) {
	c.mu.Lock()
	c.said = said
	if said.Ready {
		c.to = nil
	}
	c.mu.Unlock()
	klog.InfoS("Changing the Node's condition NetworkUnavailable", "unavailable", !said.Ready, "reason", said.Reason, "message", said.Message)
	if news {
		c.node.Event(kind, said.Reason, said.Message)
	}
}

// reported is the fault that this host's proxy reports about routes to other nodes, and their affected ranges.
func (c *condition) reported() (found Condition, to []netip.Prefix) {
	list, err := c.reports.Read()
	if err != nil {
		klog.ErrorS(err, "Cannot read what the proxy reports; assuming that other nodes can be reached")
	}
	var messages []string
	for _, t := range list {
		if found.Reason == "" {
			found.Reason = t.Reason
		}
		messages = append(messages, t.Message)
		if t.To.IsValid() {
			to = append(to, t.To)
		}
	}
	found.Message = strings.Join(messages, "; ")
	return found, to
}

// probe sends packets from the source address of pods' traffic: to the API server, and to the pod ranges that were unreachable.
func (c *condition) probe(ctx context.Context, s State, to []netip.Prefix) error {
	from := netip.Addr{}
	if len(s.Gateways) > 0 {
		from = s.Gateways[0].Address.Addr()
	}
	if err := c.prober.ToServer(ctx, from); err != nil {
		return err
	}
	for _, p := range to {
		from := netip.Addr{}
		if i := slices.IndexFunc(s.Gateways, func(g Gateway) bool { return g.Address.Addr().Is4() == p.Addr().Is4() }); i >= 0 {
			from = s.Gateways[i].Address.Addr()
		}
		if err := c.prober.ToPods(ctx, from, p); err != nil {
			return fmt.Errorf("cannot reach the pods in %s: %w", p, err)
		}
	}
	return nil
}
