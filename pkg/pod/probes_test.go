package pod

import (
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		after   time.Duration // of start, when the probe was due
		period  time.Duration
		command bool
		want    time.Duration
	}{
		{after: 0, period: 10 * time.Second, want: 10 * time.Second},
		{after: 400 * time.Millisecond, period: 10 * time.Second, want: 9600 * time.Millisecond},
		{after: 600 * time.Millisecond, period: 10 * time.Second, want: 10400 * time.Millisecond},
		{after: 600 * time.Millisecond, period: 10 * time.Second, command: true, want: 10 * time.Second},
		{after: 3 * time.Millisecond, period: 10 * time.Second, want: 10*time.Second - 3*time.Millisecond}, // a timer is late
		{after: -3 * time.Millisecond, period: 10 * time.Second, want: 10*time.Second + 3*time.Millisecond},
		{after: 130 * time.Millisecond, period: time.Second, want: 970 * time.Millisecond},
		{after: 400 * time.Millisecond, period: time.Hour, want: time.Hour - 400*time.Millisecond},
	} {
		if got := pause(start.Add(test.after), test.period, test.command); got != test.want {
			t.Errorf("pause(start%+v, %v, %v) = %v, want %v", test.after, test.period, test.command, got, test.want)
		}
	}
}
