package plan

import (
	"time"
)

// Back-off of containers that exit again and again: none, then 10 s doubling to 300 s; a run of more than 10 min is a new start.
const (
	crashBackOffMin   = 10 * time.Second
	crashBackOffMax   = 300 * time.Second
	crashBackOffReset = 10 * time.Minute
)

// crashDelay is how long after list[0] exited the next attempt may start. applied is the delay after which list[0] itself was started
// where this agent did it; nil: it is read off the times at which the engine ended list[1] and made list[0], so that a restart of the
// agent does not forgive a crashing container. A boot of the host does, as it does upstream: it may be what ended list[0].
func crashDelay(list []past, hash string, applied *time.Duration) time.Duration {
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
		for step := crashBackOffMin; step <= gap && step <= crashBackOffMax; step *= 2 {
			before = step
		}
	}
	return min(max(2*before, crashBackOffMin), crashBackOffMax)
}
