package containers

import (
	"errors"
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

// TestDeniedOOM has what runtimes print, with the engine's words around it.
func TestDeniedOOM(t *testing.T) {
	for text, want := range map[string]bool{
		"runc 1.1.5: OCI runtime create failed: runc create failed: unable to start container process: can't get final child's PID from pipe: EOF: unknown": true,
		"runc 1.5.2: error during container init: write /proc/self/oom_score_adj: permission denied: unknown":                                               true,
		"crun 1.8.1: OCI runtime create failed: write to /proc/self/oom_score_adj: Permission denied: unknown":                                              true,
		"OCI runtime create failed: open /etc/hosts: permission denied":                                                                                     false,
	} {
		if got := deniedOOM(errors.New(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
