package worker

import (
	"testing"
	"time"
)

// TestFirstProbe: a container's initial delay is respected whatever start time the clock shows.
func TestFirstProbe(t *testing.T) {
	const day = 24 * time.Hour
	now := time.Now()
	for _, c := range []struct {
		name          string
		start         time.Time
		initial, left time.Duration
	}{
		{"no jump", now.Add(-30 * time.Second), 40 * time.Second, 10 * time.Second},
		{"no jump, later", now.Add(-70 * time.Second), 40 * time.Second, 0},
		{"clock set forward by a day", now.Add(-30*time.Second - day), 40 * time.Second, 0},
		{"clock set back by a day", now.Add(day - 70*time.Second), 40 * time.Second, 40 * time.Second},
		{"no delay", now.Add(-70 * time.Second), 0, 0},
	} {
		if got := firstProbe(c.start, now, c.initial); got != c.left {
			t.Errorf("%s: the first probe waits for %s, want %s", c.name, got, c.left)
		}
	}
}
