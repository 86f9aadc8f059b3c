package network

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// recheckOld is how often a host is compared whose HNS has no subscribers: Windows before firstToTell, the build of Server 2019.
const (
	recheckOld  = 5 * time.Second
	firstToTell = 17763
)

// longestRest is between two comparisons at least, however much a chatty host tells.
const longestRest = time.Second

// wait returns when it is time to compare again; an error when ctx ended. What others change is repaired at once, by a comparison or, when the
// last was only just made, by mending first. So a host that is damaged again and again is never without network for long.
func (m *Manager) wait(ctx context.Context, timer clock.Timer, changes <-chan struct{}, synced time.Time, wait time.Duration) error {
	restart(timer, wait)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.wake:
			return nil
		case <-timer.C():
			return nil
		case <-changes:
		}
		rest := m.mend(ctx, synced)
		left := longestRest - m.parts.Clock.Since(synced)
		if left <= 0 {
			return nil
		}
		restart(timer, min(rest, left))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.wake:
			return nil
		case <-timer.C():
		}
		if rest >= left {
			return nil
		}
		restart(timer, left-rest)
	}
}

// mend puts back what Linux itself has of the state, without a look at the engine, unless a comparison is due that does all. It returns how long
// to leave it at that: as long as it took, so that mending takes half of the time at most. An error shows again when everything is compared.
func (m *Manager) mend(ctx context.Context, synced time.Time) (rest time.Duration) {
	m.mu.Lock()
	state, err := m.state, m.err
	m.mu.Unlock()
	begin := m.parts.Clock.Now()
	if err != nil || state.Network == nil || m.cfg.Platform.OS == "windows" || begin.Sub(synced) >= longestRest {
		return 0
	}
	if err := m.parts.Host.Apply(ctx, state); err != nil {
		klog.V(2).ErrorS(err, "The pod network was not mended yet")
	}
	return m.parts.Clock.Since(begin)
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
