package pod

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DeadLimits are which containers that have ended are kept although nothing but `kubectl logs` needs them. A nil one is upstream's defaults.
type DeadLimits struct {
	PerContainer int           // beside the attempt that runs, or that ended last; negative: all (maximum-dead-containers-per-container)
	Total        int           // on the node; negative: no limit (maximum-dead-containers)
	MinAge       time.Duration // none goes sooner after its end (minimum-container-ttl-duration)
}

var defaultDead = DeadLimits{PerContainer: 1, Total: -1}

func (d *DeadLimits) orDefault() DeadLimits {
	if d == nil {
		return defaultDead
	}
	return *d
}

// young says that a container ended too short a time ago to go.
func (d DeadLimits) young(c Container, now time.Time) bool { return now.Sub(c.FinishedAt) < d.MinAge }

// surplus are the containers that have ended last of which the node keeps more than d allows, the oldest ends first.
func (d DeadLimits) surplus(views []View, now time.Time) map[types.UID][]string {
	if d.Total < 0 {
		return nil
	}
	type dead struct {
		uid types.UID
		Container
	}
	var all []dead
	for _, view := range views {
		seen := map[string]bool{}
		for _, c := range view.Observed.Containers { // the newest of each name first
			latest := !seen[c.Name]
			seen[c.Name] = true
			if c.State == Exited && (!latest || view.Phase == Terminated) && !d.young(c, now) {
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
	for uid, ids := range m.cfg.Dead.orDefault().surplus(m.Snapshot(), m.parts.Clock.Now()) {
		if w := m.workers[uid]; w != nil {
			w.inbox.put(func() {
				w.know.Surplus = map[string]bool{}
				for _, id := range ids {
					w.know.Surplus[id] = true
				}
			})
		}
	}
}
