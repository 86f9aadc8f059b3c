package proxy

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// refusalEvery is how often at most one Node is told that its claims are not believed: what it writes is not ours, and it may write all the time.
const refusalEvery = 10 * time.Minute

// refusals are what Nodes were told.
type refusals map[string]refusal

type refusal struct {
	said string
	at   time.Time
	due  bool // something else is to be said, once the time has come
}

// reportRefusals says on a Node that others have addresses which it claims: once, and something else after a while.
func (l *Loop) reportRefusals() {
	for _, node := range l.tracker.Suspects() {
		r := l.refusals[node]
		text := l.tracker.Disbelieved(node)
		if r.due = text != "" && text != r.said; r.due || !r.at.IsZero() {
			l.refusals[node] = r
		}
	}
	now := l.cfg.Clock.Now()
	for node, r := range l.refusals {
		recent := !r.at.IsZero() && now.Sub(r.at) < refusalEvery
		text := l.tracker.Disbelieved(node)
		switch {
		case recent:
		case text == "":
			delete(l.refusals, node)
		case r.due:
			l.refusals[node] = refusal{said: text, at: now}
			klog.InfoS("A Node's claim is not believed", "node", node, "reason", text)
			l.cfg.Events.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, v1.EventTypeWarning,
				"AddressClaimRefused", text)
		}
	}
}
