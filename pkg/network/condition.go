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
	routeConflict = "RouteConflict" // the proxy says so
)

// ownReasons are those that an agent of ours wrote.
var ownReasons = []string{rangeMissing, rangeInvalid, rangeChanged, rangeOverlaps, noNetwork, addressLost, noAdapter, noPlugins, routeConflict}

const (
	// patience is how long something must be wrong before the Node says so: a new Node gets its range a moment after it was registered.
	patience = 3 * time.Second
	// goneAfter is how long a node that could not be reached is probed before it counts as gone: this Node shall not wait for it.
	goneAfter = time.Minute
)

// condition decides what the Node says about its network (NetworkUnavailable), from what comparisons and the proxy find.
type condition struct {
	clock   clock.Clock
	node    Node
	prober  Prober
	reports Reports

	mu    sync.Mutex
	seen  Condition      // by the last comparison; no Reason: nothing
	since time.Time      // of seen's Reason
	said  Condition      // on the Node; no Reason: nothing was ever said
	to    []netip.Prefix // others' pods that could not be reached while the Node said so
}

// current is what the Node should say; nil: nothing, what others say there stays.
func (c *condition) current() *Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said.Reason == "" {
		return nil
	}
	said := c.said
	return &said
}

// recall remembers what an earlier run said on the Node: this one must take it back.
func (c *condition) recall(n *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, on := range n.Status.Conditions {
		if on.Type == v1.NodeNetworkUnavailable && on.Status == v1.ConditionTrue && c.said.Reason == "" && slices.Contains(ownReasons, on.Reason) {
			c.said = Condition{Reason: on.Reason, Message: on.Message}
		}
	}
}

// judge decides what the Node says after a comparison that found seen, with state on the host. A fault is taken back only when packets have
// arrived. The error says what is wrong.
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

// say puts said on the Node, with an Event if its reason is new.
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

// reported is what the proxy of this host says about the routes to other nodes, and the ranges of theirs that it concerns.
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

// probe sends packets from the address that pods send theirs from: to the API server, and to those pods' ranges that could not be reached.
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
