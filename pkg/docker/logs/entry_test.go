package logs

import (
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestExtremeSeconds: no number of seconds overflows in a log request.
func TestExtremeSeconds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, n := range []int64{0, -1, 1, 9223372037, 1 << 62, math.MaxInt64, math.MinInt64} {
		if got := since(&v1.PodLogOptions{SinceSeconds: &n}, now); n > 0 && got.After(now) || n < 0 && got.Before(now) {
			t.Errorf("sinceSeconds %d: %v", n, got)
		}
	}
}
