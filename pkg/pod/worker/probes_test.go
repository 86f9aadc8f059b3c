package worker

import (
	"math"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

func TestPause(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		after   time.Duration // after start, when the probe was due
		period  time.Duration
		command bool
		want    time.Duration
	}{
		{after: 0, period: 10 * time.Second, want: 10 * time.Second},
		{after: 400 * time.Millisecond, period: 10 * time.Second, want: 9600 * time.Millisecond},
		{after: 600 * time.Millisecond, period: 10 * time.Second, want: 10400 * time.Millisecond},
		{after: 600 * time.Millisecond, period: 10 * time.Second, command: true, want: 10 * time.Second},
		{after: 3 * time.Millisecond, period: 10 * time.Second, want: 10*time.Second - 3*time.Millisecond}, // the timer fired late
		{after: -3 * time.Millisecond, period: 10 * time.Second, want: 10*time.Second + 3*time.Millisecond},
		{after: 130 * time.Millisecond, period: time.Second, want: 970 * time.Millisecond},
		{after: 400 * time.Millisecond, period: time.Hour, want: time.Hour - 400*time.Millisecond},
	} {
		if got := pause(start.Add(test.after), test.period, test.command); got != test.want {
			t.Errorf("pause(start%+v, %v, %v) = %v, want %v", test.after, test.period, test.command, got, test.want)
		}
	}
}

// TestSpread: after a restart of the agent, the first probes are spread over their whole period, however long.
func TestSpread(t *testing.T) {
	for _, period := range []time.Duration{time.Second, 10 * time.Second, time.Hour, math.MaxInt32 * time.Second} {
		least, most := period, time.Duration(0)
		for i := range 1000 {
			got := spread(probeKey{id: string(rune('a' + i)), kind: livenessProbe}, period)
			if got < 0 || got >= period {
				t.Fatalf("%v of %v", got, period)
			}
			least, most = min(least, got), max(most, got)
		}
		if least > period/20 || most < period-period/20 {
			t.Errorf("period %v: from %v to %v", period, least, most)
		}
	}
	if got := fraction(math.MaxInt64, math.MaxUint32); got < math.MaxInt64-1<<32 || fraction(10*time.Second, 1<<31) != 5*time.Second {
		t.Errorf("%v, %v", got, fraction(10*time.Second, 1<<31))
	}
}

// TestProbeSeconds: a probe's period or timeout is never zero.
func TestProbeSeconds(t *testing.T) {
	for _, n := range []int64{0, -1, 7, math.MaxInt32, math.MaxInt64, math.MinInt64} {
		if n := int32(max(min(n, math.MaxInt32), math.MinInt32)); seconds(n, 10) <= 0 || n > 0 && seconds(n, 10) != podspec.Seconds(int64(n)) {
			t.Errorf("periodSeconds %d: %v", n, seconds(n, 10))
		}
	}
}
