package proxy

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// refusalEvery is the minimum interval between two Events on one Node about its addresses. Its kubelet decides what it
// reports, and may change it constantly.
const refusalEvery = 10 * time.Minute

// refusals are the last Events on Nodes, by name.
type refusals map[string]refusal

type refusal struct {
	said string
	at   time.Time
	due  bool // the text has changed: another Event follows when the interval is over
}

// reportRefusals records an Event on a Node that reports addresses of other holders, and another one when that changes.
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
			klog.InfoS("Ignored addresses that a Node reports", "node", node, "reason", text)
			l.cfg.Events.Event(&v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, v1.EventTypeWarning,
				"AddressClaimRefused", text)
		}
	}
}
