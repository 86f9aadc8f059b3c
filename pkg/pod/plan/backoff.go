package plan

import (
	"cmp"
	"time"
)

// Back-off of crashing containers: none at first, then 10 s, doubling up to CrashBackOffMax or Node.CrashBackOff. A run of more than 10 min resets it.
const (
	crashBackOffMin   = 10 * time.Second
	CrashBackOffMax   = 300 * time.Second
	crashBackOffReset = 10 * time.Minute
)

// crashDelay is the minimum time between the exit of list[0] and the next attempt. applied is the delay that this agent used to start
// list[0]. If nil, it is derived from the times when the engine ended list[1] and created list[0], so that an agent restart does not reset
// the back-off. A host boot does reset it, as upstream: the boot may have ended list[0]. most is the longest delay; 0: CrashBackOffMax.
func crashDelay(list []past, hash string, applied *time.Duration, most time.Duration) time.Duration {
	if len(list) == 0 || list[0].Hash != hash {
		return 0
	}
	latest := list[0]
	if latest.FinishedAt.Sub(latest.StartedAt) > crashBackOffReset && !latest.StartedAt.IsZero() {
		return 0
	}
	if latest.Attempt == 0 || latest.EarlierBoot {
		return 0
	}
	before := time.Duration(0)
	switch {
	case applied != nil:
		before = *applied
	case len(list) > 1 && !list[1].FinishedAt.IsZero() && !latest.CreatedAt.IsZero():
		gap := latest.CreatedAt.Sub(list[1].FinishedAt)
		for step := crashBackOffMin; step <= gap && step <= CrashBackOffMax; step *= 2 {
			before = step
		}
	}
	return min(max(2*before, crashBackOffMin), cmp.Or(most, CrashBackOffMax))
}
