package docker

import (
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// testResize changes the limits of a running container: up beyond the former swap limit, added where there were none, and down, but not below current
// usage.
func testResize(t *testing.T, r *rig) {
	p := r.pod("resize", []string{"pause"}, []string{"pause"})
	p.Spec.Containers[0].Resources = resources("250m", "100Mi")
	ids := r.run(p)
	update := func(i int, want podspec.Resources) error {
		step := pod.Step{Action: pod.UpdateContainer, Container: p.Spec.Containers[i].Name, Kind: podspec.App, ID: ids[i], Resources: &want}
		return r.Apply(t.Context(), p, step)
	}
	holds := func(i int, want podspec.Resources) {
		t.Helper()
		if c := r.container(p, p.Spec.Containers[i].Name); c.State != pod.Running || c.Attempt != 0 || c.Resources == nil || *c.Resources != want {
			t.Errorf("%s: %s attempt %d %v, want %v", c.Name, c.State, c.Attempt, c.Resources, want)
		}
	}
	holds(0, podspec.ResourcesOf(p, &p.Spec.Containers[0]))
	holds(1, podspec.Resources{Shares: 2})
	for _, want := range []podspec.Resources{
		{Shares: 512, Quota: 50_000, Period: 100_000, Memory: 300 << 20},
		{Shares: 102, Quota: 10_000, Period: 100_000, Memory: 64 << 20},
		{Shares: 102, Memory: 64 << 20},
	} {
		for i := range ids {
			for range 2 { // repeating it is not an error
				if err := update(i, want); err != nil {
					t.Fatal(err)
				}
			}
			holds(i, want)
		}
	}
	err := update(0, podspec.Resources{Shares: 2, Memory: 10 << 10})
	if err == nil || !strings.Contains(err.Error(), "memory limit (10240) below current usage (") {
		t.Errorf("a limit below what is in use: %v", err)
	}
	holds(0, podspec.Resources{Shares: 102, Memory: 64 << 20})
	if err := update(0, podspec.Resources{Shares: 102, Quota: 20_000, Period: 100_000, Memory: 80 << 20}); err != nil {
		t.Error(err)
	}
	holds(0, podspec.Resources{Shares: 102, Quota: 20_000, Period: 100_000, Memory: 80 << 20})
}
