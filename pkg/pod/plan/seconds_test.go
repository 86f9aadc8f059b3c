package plan

import (
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// TestSecondsOfSpecs: a large number of seconds in a spec is long, a negative one is zero, and a time calculated from now with either is
// not in the past.
func TestSecondsOfSpecs(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const long = math.MaxInt32 * time.Second
	for _, test := range []struct {
		n     int64
		want  time.Duration
		grace time.Duration
	}{
		{0, 0, time.Second}, {-1, -time.Second, time.Second}, {7, 7 * time.Second, 7 * time.Second}, {math.MaxInt32, long, long}, {9223372036, long, long},
		{9223372037, long, long}, {18446744074, long, long}, {1 << 62, long, long}, {math.MaxInt64, long, long}, {math.MinInt64, -long, time.Second},
	} {
		if got := podspec.Seconds(test.n); got != test.want {
			t.Errorf("Seconds(%d) = %v, want %v", test.n, got, test.want)
		}
		p := &v1.Pod{}
		p.Spec.TerminationGracePeriodSeconds = &test.n
		probe := &v1.Probe{TerminationGracePeriodSeconds: &test.n}
		if got := podspec.StopGrace(p); got != test.grace {
			t.Errorf("terminationGracePeriodSeconds %d: %v, want %v", test.n, got, test.grace)
		}
		if got := podspec.ProbeGrace(&v1.Pod{}, probe); got != test.grace {
			t.Errorf("a probe's terminationGracePeriodSeconds %d: %v, want %v", test.n, got, test.grace)
		}
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Spec.TerminationGracePeriodSeconds = &metav1.Time{Time: now}, &test.n, nil
		if got := podspec.StopGrace(p); got != test.grace {
			t.Errorf("deletionGracePeriodSeconds %d: %v, want %v", test.n, got, test.grace)
		}
		p = &v1.Pod{}
		p.Spec.ActiveDeadlineSeconds = &test.n
		seen := &Seen{Node: Node{Platform: platforms["linux"]}, Memory: Memory{Last: v1.PodStatus{StartTime: &metav1.Time{Time: now}}}}
		ended := Plan(p, *seen, now.Add(time.Second/2)).End != nil
		if want := test.n <= 0; ended != want {
			t.Errorf("activeDeadlineSeconds %d, half a second later: ended %v, want %v", test.n, ended, want)
		}
	}
}
