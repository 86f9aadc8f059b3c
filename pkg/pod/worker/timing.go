package worker

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// timing is one worker's measurements. The zero value measures nothing, as needed for a pod that ran before it was first seen.
type timing struct {
	to    pod.Timing // nil: nothing is measured
	seen  time.Time  // when the pod was first seen; zero: it runs or has run
	began time.Time  // start of the current work; zero: none
	kind  string
	phase pod.Phase
}

// newTiming is for a pod that was first seen now, with a known phase.
func newTiming(to pod.Timing, known v1.PodPhase, now time.Time) timing {
	t := timing{to: to}
	if known == "" || known == v1.PodPending {
		t.seen = now
	}
	return t
}

// step is called when a step begins. fresh means that the engine has nothing of the pod. A change of phase ends the current work.
func (t *timing) step(phase pod.Phase, fresh bool, now time.Time) {
	if !t.began.IsZero() && t.phase == phase {
		return
	}
	t.rest(now)
	t.began, t.phase = now, phase
	switch {
	case phase == pod.Terminating:
		t.kind = pod.KillWork
	case phase == pod.Terminated:
		t.kind = pod.TerminatedWork
	case fresh:
		t.kind = pod.CreateWork
	default:
		t.kind = pod.SyncWork
	}
}

// rest is called when no step is in flight and none will begin.
func (t *timing) rest(now time.Time) {
	if t.to != nil && !t.began.IsZero() {
		t.to.PodSynced(t.kind, now.Sub(t.began))
	}
	t.began = time.Time{}
}

// status is called with the pod's phase in the API.
func (t *timing) status(phase v1.PodPhase, now time.Time) {
	if phase == v1.PodPending || phase == "" {
		return
	}
	if t.to != nil && phase == v1.PodRunning && !t.seen.IsZero() {
		t.to.PodStarted(now.Sub(t.seen))
	}
	t.seen = time.Time{}
}

// endings are the exited attempts of a pod's containers, by id. Nil: nothing was observed yet.
type endings map[string]bool

// take returns the containers that have exited since the last observation. Those in the first observation exited before this agent looked.
func (e *endings) take(observed pod.Observed) (fresh []pod.Container) {
	now := endings{}
	for _, c := range observed.Containers {
		if c.State != pod.Exited {
			continue
		}
		now[c.ID] = true
		if *e != nil && !(*e)[c.ID] {
			fresh = append(fresh, c)
		}
	}
	*e = now
	return fresh
}
