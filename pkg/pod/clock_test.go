package pod

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestClockSetBack: a container that exited at a time that is yet to come is not held up until then, and one that exited just now is.
func TestClockSetBack(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	p := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "c", Image: "i"}}}}
	for ended, starts := range map[time.Duration]bool{-time.Minute: true, -time.Second: false, 10 * time.Second: false, time.Hour: true} {
		exited := func(attempt int, at time.Time) Container {
			return Container{ID: "c" + at.String(), Name: "c", Kind: App, Attempt: attempt, SandboxID: "box", Hash: Hash(&p.Spec.Containers[0]),
				State: Exited, ExitCode: 1, CreatedAt: at.Add(-time.Second), StartedAt: at.Add(-time.Second), FinishedAt: at}
		}
		at := now.Add(ended)
		observed := Observed{Sandboxes: []Sandbox{{ID: "box", Running: true, Addresses: nil}}, Containers: []Container{exited(1, at), exited(0, at.Add(-2*time.Second))}}
		p.Spec.HostNetwork = true
		know := Knowledge{Platform: Platform{OS: "linux", SharedNetwork: true}}
		d := Plan(p, observed, know, now)
		started := len(d.Steps) == 1 && d.Steps[0].Action == StartContainer
		if started != starts {
			t.Errorf("ended %s from now: started %t, want %t: %+v", ended, started, starts, d)
		}
	}
}
