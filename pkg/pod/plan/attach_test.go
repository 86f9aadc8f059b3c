package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// A sandbox without a network holds no container, and gets its network rather than a successor.
func TestPlanAttaches(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	box := pod.Sandbox{ID: "box", Running: true, Unattached: true, CreatedAt: noon}
	app := pod.Container{ID: "app", Name: "main", Kind: podspec.App, State: pod.Running, SandboxID: "box", Unattached: true, Hash: podspec.Hash(&p.Spec.Containers[0]), StartedAt: noon}
	ended := app
	ended.State, ended.FinishedAt = pod.Exited, noon
	attached := box
	attached.Unattached, attached.Addresses = false, []netip.Addr{netip.MustParseAddr("10.1.0.7")}
	for _, test := range []struct {
		name     string
		platform string
		observed pod.Observed
		phase    pod.Phase
		busy     []pod.Step
		failed   bool
		want     string
	}{
		{name: "sandbox", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, want: "attach-network box"},
		{name: "it is being attached", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, busy: []pod.Step{{Action: pod.AttachNetwork, ID: "box"}}},
		{name: "it failed just now", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, failed: true},
		{name: "it has ended", observed: pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", CreatedAt: noon}}}, want: "create-sandbox "},
		{name: "attached", observed: pod.Observed{Sandboxes: []pod.Sandbox{attached}}, want: "start-container "},
		{name: "restarted under its containers", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}, Containers: []pod.Container{app}}, want: "stop-container app"},
		{name: "... which have been stopped", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}, Containers: []pod.Container{ended}}, want: "stop-sandbox box, create-sandbox "},
		{name: "container", platform: "windows-2022", observed: pod.Observed{Sandboxes: []pod.Sandbox{attached}, Containers: []pod.Container{app}}, want: "attach-network app"},
		{name: "no sandbox", platform: "windows-2016", observed: pod.Observed{Containers: []pod.Container{app}}, want: "attach-network app"},
		{name: "the pod ends", phase: pod.Terminating, observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, want: "stop-sandbox box"},
		{name: "the pod ends while it is attached", phase: pod.Terminating, observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, busy: []pod.Step{{Action: pod.AttachNetwork, ID: "box"}}},
	} {
		know := Knowledge{Platform: platforms[test.platform], Phase: test.phase, Busy: test.busy, Failures: map[string]Failure{}}
		if test.failed {
			know.Failures["box"] = Failure{Reason: pod.ReasonSandbox, Until: noon.Add(time.Second)}
		}
		var got []string
		decision := Plan(p, test.observed, know, noon)
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
