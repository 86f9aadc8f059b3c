package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
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

// patience is how long something must be wrong before the Node says so: a new Node gets its range a moment after it was registered.
const patience = 3 * time.Second

// goneAfter is how long a node to which there was no way is asked before it is taken to have gone itself: the Node shall not wait for it.
const goneAfter = time.Minute

// trouble is what stands between this node's pods and others, as the Node's condition NetworkUnavailable tells it.
type trouble struct {
	seen  Condition      // by the last comparison; no Reason: nothing
	since time.Time      // of seen's Reason
	told  Condition      // on the Node; no Reason: nothing was ever said
	to    []netip.Prefix // others' pods to which there was no way while the Node said so
}

// Unavailable is what the Node's condition NetworkUnavailable should say; nil: nothing, what others say there stays.
func (m *Manager) Unavailable() *Condition {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trouble.told.Reason == "" {
		return nil
	}
	told := m.trouble.told
	return &told
}

// recall takes in what an earlier run said on the Node: it is for us to take back. The caller holds the lock.
func (t *trouble) recall(n *v1.Node) {
	for _, c := range n.Status.Conditions {
		if c.Type != v1.NodeNetworkUnavailable || c.Status != v1.ConditionTrue || t.told.Reason != "" {
			continue
		}
		switch c.Reason {
		case rangeMissing, rangeInvalid, rangeChanged, rangeOverlaps, noNetwork, addressLost, noAdapter, noPlugins, routeConflict:
			t.told = Condition{Reason: c.Reason, Message: c.Message}
		}
	}
}

// judge decides what the Node says after a comparison that found seen. What was said is taken back only when packets have found their way.
func (m *Manager) judge(ctx context.Context, seen Condition) error {
	var to []netip.Prefix
	if seen.Reason == "" {
		seen, to = m.way()
	}
	m.mu.Lock()
	t := &m.trouble
	now := m.parts.Clock.Now()
	if seen.Reason != t.seen.Reason {
		t.since = now
	}
	t.seen = seen
	for _, p := range to {
		if !slices.Contains(t.to, p) {
			t.to = append(t.to, p)
		}
	}
	if to = slices.Clone(t.to); now.Sub(t.since) > goneAfter {
		to = nil
	}
	told, state := t.told, m.state
	lasted := now.Sub(t.since) >= patience
	m.mu.Unlock()
	switch {
	case seen.Reason != "" && lasted && told != seen:
		m.say(v1.EventTypeWarning, seen, told.Reason != seen.Reason)
	case seen.Reason == "" && told.Reason != "" && !told.Ready:
		if err := m.probe(ctx, state, to); err != nil {
			return fmt.Errorf("the node stays marked NetworkUnavailable: %w", err)
		}
		m.say(v1.EventTypeNormal, ready("%s", state.Ready.Message), true)
	case seen.Reason == "":
		m.mu.Lock()
		t.to = nil
		m.mu.Unlock()
	}
	if seen.Reason != "" {
		return errors.New(seen.Message)
	}
	return nil
}

// say puts c on the Node, with an Event when it is news.
func (m *Manager) say(kind string, c Condition, news bool) {
	m.mu.Lock()
	m.trouble.told = c
	if c.Ready {
		m.trouble.to = nil
	}
	m.mu.Unlock()
	klog.InfoS("The Node's condition NetworkUnavailable changes", "unavailable", !c.Ready, "reason", c.Reason, "message", c.Message)
	if news && m.parts.Event != nil {
		m.parts.Event(kind, c.Reason, c.Message)
	}
}

// overlaps finds what of others lies in the pods' range.
func (m *Manager) overlaps(s State, networks []pod.EngineNetwork, around Surroundings) Condition {
	var found []string
	for _, f := range ranges(Symptoms{Config: m.cfg, State: s, Networks: networks, Surroundings: around}) {
		if f.Fault {
			found = append(found, f.What+" (mend: "+f.Mend+")")
		}
	}
	if len(found) == 0 {
		return Condition{}
	}
	return Condition{Reason: rangeOverlaps, Message: strings.Join(found, "; ")}
}

// forbids is why a network that is not there is not begun: what would stop it half-way, or cost others their addresses, is seen before.
func (m *Manager) forbids(s State, networks []pod.EngineNetwork, around Surroundings, overlap Condition) Condition {
	if slices.ContainsFunc(networks, func(n pod.EngineNetwork) bool { return n.Name == s.Network.Name }) {
		return Condition{}
	}
	if wrong := m.lacksAdapter(around); wrong.Reason != "" {
		return wrong
	}
	return overlap
}

// lacksAdapter says that the adapter which --interface names is not there, where the host's are known.
func (m *Manager) lacksAdapter(around Surroundings) Condition {
	var names []string
	for _, l := range around.Links {
		names = append(names, strconv.Quote(l.Name))
		if l.Name == m.cfg.Adapter || l.Name == adapterOf(m.cfg.Adapter) {
			return Condition{}
		}
	}
	if m.cfg.Platform.OS != "windows" || m.cfg.Adapter == "" || len(names) == 0 {
		return Condition{}
	}
	return Condition{Reason: noAdapter, Message: fmt.Sprintf("--interface=%s: this host has no such network adapter; it has %s", m.cfg.Adapter, strings.Join(names, ", "))}
}
