package plan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// TestClockSetBack: an exit time in the future causes no wait; a recent exit does.
func TestClockSetBack(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	for ended, starts := range map[time.Duration]bool{-time.Minute: true, -time.Second: false, 10 * time.Second: false, time.Hour: true} {
		exited := func(attempt int, at time.Time) pod.Container {
			return pod.Container{ID: "c" + at.String(), Name: "c", Kind: podspec.App, Attempt: attempt, SandboxID: "box", Hash: podspec.Hash(&p.Spec.Containers[0]),
				State: pod.Exited, ExitCode: 1, CreatedAt: at.Add(-time.Second), StartedAt: at.Add(-time.Second), FinishedAt: at}
		}
		at := now.Add(ended)
		observed := pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", Running: true, Addresses: nil}}, Containers: []pod.Container{exited(1, at), exited(0, at.Add(-2*time.Second))}}
		p.Spec.HostNetwork = true
		d := Plan(p, Seen{Node: Node{Platform: platforms["linux"]}, Engine: observed}, now)
		started := len(d.Steps) == 1 && does(d.Steps[0], pod.StartContainer)
		if started != starts {
			t.Errorf("ended %s from now: started %t, want %t: %+v", ended, started, starts, d)
		}
	}
}

// TestClockJumps: durations under this agent are measured by elapsed time, not by the system clock.
func TestClockJumps(t *testing.T) {
	const day = 24 * time.Hour
	seconds := int64(60)
	p := &v1.Pod{Spec: v1.PodSpec{ActiveDeadlineSeconds: &seconds, RestartPolicy: v1.RestartPolicyNever, HostNetwork: true,
		Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	now := time.Now() // with a monotonic reading: the times below have none, like times that are read
	wall := now.Round(0)
	for _, c := range []struct {
		name     string
		ran      time.Duration // elapsed time
		start    time.Time     // as the status says
		deadline bool          // activeDeadlineSeconds has passed
		began    bool          // under this agent
	}{
		{"no jump", 30 * time.Second, wall.Add(-30 * time.Second), false, true},
		{"no jump, later", 70 * time.Second, wall.Add(-70 * time.Second), true, true},
		{"clock set forward by a day", 30 * time.Second, wall.Add(-30*time.Second - day), false, true},
		{"clock set back by a day", 70 * time.Second, wall.Add(day - 70*time.Second), true, true},
		{"of an agent before", 70 * time.Second, wall.Add(-70 * time.Second), true, false},
	} {
		start := metav1.NewTime(c.start)
		seen := Seen{Node: Node{Platform: platforms["linux"]}, Memory: Memory{Last: v1.PodStatus{StartTime: &start}}}
		if c.began {
			seen.Memory.Began = now.Add(-c.ran)
		}
		if d := Plan(p, seen, now); (d.End != nil) != c.deadline {
			t.Errorf("%s: end %+v, want one: %t", c.name, d.End, c.deadline)
		}
	}
}
