package pod

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// A sandbox without a network holds no container, and gets its network rather than a successor.
func TestPlanAttaches(t *testing.T) {
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	box := Sandbox{ID: "box", Running: true, Unattached: true, CreatedAt: noon}
	app := Container{ID: "app", Name: "main", Kind: podspec.App, State: Running, SandboxID: "box", Unattached: true, Hash: podspec.Hash(&pod.Spec.Containers[0]), StartedAt: noon}
	ended := app
	ended.State, ended.FinishedAt = Exited, noon
	attached := box
	attached.Unattached, attached.Addresses = false, []netip.Addr{netip.MustParseAddr("10.1.0.7")}
	for _, test := range []struct {
		name     string
		platform string
		observed Observed
		phase    Phase
		busy     []Step
		failed   bool
		want     string
	}{
		{name: "sandbox", observed: Observed{Sandboxes: []Sandbox{box}}, want: "attach-network box"},
		{name: "it is being attached", observed: Observed{Sandboxes: []Sandbox{box}}, busy: []Step{{Action: AttachNetwork, ID: "box"}}},
		{name: "it failed just now", observed: Observed{Sandboxes: []Sandbox{box}}, failed: true},
		{name: "it has ended", observed: Observed{Sandboxes: []Sandbox{{ID: "box", CreatedAt: noon}}}, want: "create-sandbox "},
		{name: "attached", observed: Observed{Sandboxes: []Sandbox{attached}}, want: "start-container "},
		{name: "restarted under its containers", observed: Observed{Sandboxes: []Sandbox{box}, Containers: []Container{app}}, want: "stop-container app"},
		{name: "... which have been stopped", observed: Observed{Sandboxes: []Sandbox{box}, Containers: []Container{ended}}, want: "stop-sandbox box, create-sandbox "},
		{name: "container", platform: "windows-2022", observed: Observed{Sandboxes: []Sandbox{attached}, Containers: []Container{app}}, want: "attach-network app"},
		{name: "no sandbox", platform: "windows-2016", observed: Observed{Containers: []Container{app}}, want: "attach-network app"},
		{name: "the pod ends", phase: Terminating, observed: Observed{Sandboxes: []Sandbox{box}}, want: "stop-sandbox box"},
		{name: "the pod ends while it is attached", phase: Terminating, observed: Observed{Sandboxes: []Sandbox{box}}, busy: []Step{{Action: AttachNetwork, ID: "box"}}},
	} {
		know := Knowledge{Platform: platforms[test.platform], Phase: test.phase, Busy: test.busy, Failures: map[string]Failure{}}
		if test.failed {
			know.Failures["box"] = Failure{Reason: ReasonSandbox, Until: noon.Add(time.Second)}
		}
		var got []string
		decision := Plan(pod, test.observed, know, noon)
		for _, s := range decision.Steps {
			got = append(got, string(s.Action)+" "+s.ID)
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
		if test.failed && decision.Next != noon.Add(time.Second) {
			t.Errorf("%s: looks again at %s", test.name, decision.Next)
		}
	}
}
