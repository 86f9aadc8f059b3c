package worker

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// surplus are the exited containers that exceed the node's limits d, those with the oldest exit first.
func surplus(d plan.DeadLimits, views []pod.View, now time.Time) map[types.UID][]string {
	if d.Total < 0 {
		return nil
	}
	type dead struct {
		uid types.UID
		pod.Container
	}
	var all []dead
	for _, view := range views {
		seen := map[string]bool{}
		for _, c := range view.Observed.Containers { // newest of each name first
			latest := !seen[c.Name]
			seen[c.Name] = true
			if c.State == pod.Exited && (!latest || view.Phase == pod.Terminated) && !d.Young(c, now) {
				all = append(all, dead{view.Pod.UID, c})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b dead) int { return a.FinishedAt.Compare(b.FinishedAt) })
	out := map[types.UID][]string{}
	for _, c := range all[:max(0, len(all)-d.Total)] {
		out[c.uid] = append(out[c.uid], c.ID)
	}
	return out
}

// trimDead makes the workers remove exited containers beyond the node's limits.
func (m *Manager) trimDead() {
	for uid, ids := range surplus(m.cfg.Dead.OrDefault(), m.Snapshot(), m.parts.Clock.Now()) {
		if w := m.worker(uid); w != nil {
			w.inbox.put(func() { w.trim(ids) })
		}
	}
}
