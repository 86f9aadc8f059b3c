package guard

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// state is the result of earlier checks. The zero value: none. It is immutable.
type state struct {
	since map[Threshold]time.Time            // since when a threshold is crossed
	seen  map[v1.NodeConditionType]time.Time // when a condition was last found
	due   []Threshold                        // crossed for their grace period and not resolved yet
}

// look compares observations with the thresholds. It returns the node's conditions, sorted, and in next.due the
// thresholds for which something must be reclaimed, in the order of signals. A due threshold stays due until more than
// its value plus Reclaim is free; a condition stays for transition after it was last found
// (evictionPressureTransitionPeriod). It is pure.
func (s state) look(all []Threshold, o Observations, transition time.Duration, now time.Time) (next state, conditions []v1.NodeConditionType) {
	next = state{since: map[Threshold]time.Time{}, seen: map[v1.NodeConditionType]time.Time{}}
	for _, t := range all {
		if !t.crossed(o, false) && !(slices.Contains(s.due, t) && t.crossed(o, true)) {
			continue
		}
		since, ok := s.since[t]
		if !ok {
			since = now
		}
		next.since[t] = since
		next.seen[t.Signal.condition()] = now
		if now.Sub(since) >= t.Grace {
			next.due = append(next.due, t)
		}
	}
	for condition, at := range s.seen {
		if _, ok := next.seen[condition]; !ok {
			next.seen[condition] = at
		}
	}
	for condition, at := range next.seen {
		if at.Equal(now) || now.Sub(at) < transition {
			conditions = append(conditions, condition)
		}
	}
	slices.Sort(conditions)
	return next, conditions
}

// crossed reports whether less than t's Value is left, or with reclaim less than Value plus Reclaim. A signal that was
// not measured is not crossed.
func (t Threshold) crossed(o Observations, reclaim bool) bool {
	seen, ok := o[t.Signal]
	if !ok {
		return false
	}
	want := t.Value.of(seen.Capacity)
	if reclaim {
		want += t.Reclaim.of(seen.Capacity)
	}
	return seen.Available < want
}

// satisfied reports whether enough is free, including each Reclaim.
func satisfied(all []Threshold, o Observations) bool {
	return !slices.ContainsFunc(all, func(t Threshold) bool { return t.crossed(o, true) })
}

// onDisk reports whether the signal is about a file system.
func (s Signal) onDisk() bool {
	switch s {
	case NodeFSAvailable, NodeFSInodes, ImageFSAvailable, ImageFSInodes:
		return true
	}
	return false
}

// reclaims reports whether images and dead containers are on the file system of a signal. dedicated: imagefs is a
// separate file system.
func (s Signal) reclaims(dedicated bool) bool {
	switch s {
	case NodeFSAvailable, NodeFSInodes:
		return !dedicated
	case ImageFSAvailable, ImageFSInodes:
		return true
	}
	return false
}
