package containers

import (
	"math"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// TestExtremeSeconds: no number of seconds overflows on its way to the engine.
func TestExtremeSeconds(t *testing.T) {
	for n, want := range map[int64]int{0: 0, -1: 0, 1: 1, 9223372037: math.MaxInt32, 1 << 62: math.MaxInt32, math.MaxInt64: math.MaxInt32, math.MinInt64: 0} {
		if got := wholeSeconds(podspec.Seconds(n)); got != want {
			t.Errorf("%d s: %d, want %d", n, got, want)
		}
	}
	for d, want := range map[time.Duration]int{math.MaxInt64: math.MaxInt32, math.MinInt64: 0, 1: 1, time.Second: 1, time.Second + 1: 2} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d s, want %d", d, got, want)
		}
	}
}
