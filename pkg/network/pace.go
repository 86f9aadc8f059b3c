package network

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"
)

// recheckOld is how often a host is compared whose HNS has no subscribers: Windows before firstToTell, the build of Server 2019.
const (
	recheckOld  = 5 * time.Second
	firstToTell = 17763
)

// A chatty host is compared at most once in longestRest, and oftener where a comparison is quick: comparisons take a fifth of the time at most.
// So a host that is damaged again and again is never without network for long.
const (
	longestRest = time.Second
	restShare   = 4
)

// wait returns when it is time to compare again; an error when ctx ended. What others change is repaired at once, unless the last
// comparison was only just made.
func (m *Manager) wait(ctx context.Context, timer clock.Timer, changes <-chan struct{}, synced time.Time, wait time.Duration) error {
	restart(timer, wait)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.wake:
		return nil
	case <-timer.C():
		return nil
	case <-changes:
	}
	pause := m.rest - m.parts.Clock.Since(synced)
	if pause <= 0 {
		return nil
	}
	restart(timer, pause)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.wake:
	case <-timer.C():
	}
	return nil
}

func restart(timer clock.Timer, d time.Duration) {
	if !timer.Stop() {
		select {
		case <-timer.C():
		default:
		}
	}
	timer.Reset(d)
}

// next says how long to wait after a comparison that ended with err and came after so many failures in a row, and how many there are now.
// every is the wait when nothing is wrong.
func next(err error, failures int, every time.Duration) (wait time.Duration, now int) {
	var soon *pending
	switch {
	case err == nil:
		return every, 0
	case errors.As(err, &soon):
		return soon.in, 0
	}
	return min(firstRetry<<min(failures, 10), every), failures + 1
}

// every is how often a host is compared that tells of no change: oftener where HNS cannot tell of its end.
func (m *Manager) every() time.Duration {
	if p := m.cfg.Platform; p.OS == "windows" && p.Build < firstToTell {
		return recheckOld
	}
	return recheck
}
