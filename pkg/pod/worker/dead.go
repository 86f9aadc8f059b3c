package worker

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// surplus are the containers that have ended of which the node keeps more than d allows, the oldest ends first.
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
		for _, c := range view.Observed.Containers { // the newest of each name first
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

// trimDead has the workers remove what there is too much of.
func (m *Manager) trimDead() {
	for uid, ids := range surplus(m.cfg.Dead.OrDefault(), m.Snapshot(), m.parts.Clock.Now()) {
		if w := m.worker(uid); w != nil {
			w.inbox.put(func() { w.trim(ids) })
		}
	}
}
