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

// No container starts in a sandbox without a network. The sandbox gets its network rather than a replacement.
func TestPlanAttaches(t *testing.T) {
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	box := pod.Sandbox{ID: "box", Running: true, CreatedAt: noon}
	app := pod.Container{ID: "app", Name: "main", Kind: podspec.App, State: pod.Running, SandboxID: "box", Hash: podspec.Hash(&p.Spec.Containers[0]), StartedAt: noon}
	ended := app
	ended.State, ended.FinishedAt = pod.Exited, noon
	attached := box
	attached.Addresses = []netip.Addr{netip.MustParseAddr("10.1.0.7")}
	for _, test := range []struct {
		name     string
		platform string
		observed pod.Observed
		phase    pod.Phase
		waits    string // id without a network
		busy     Step
		failed   bool
		want     string
	}{
		{name: "sandbox", waits: "box", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, want: "attach-network box"},
		{name: "it is being attached", waits: "box", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, busy: WorkerStep{Task: AttachNetwork, Subject: Subject{ID: "box"}}},
		{name: "it failed just now", waits: "box", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, failed: true},
		{name: "it has ended", observed: pod.Observed{Sandboxes: []pod.Sandbox{{ID: "box", CreatedAt: noon}}}, want: "create-sandbox "},
		{name: "attached", observed: pod.Observed{Sandboxes: []pod.Sandbox{attached}}, want: "start-container "},
		{name: "restarted under its containers", waits: "box app", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}, Containers: []pod.Container{app}}, want: "stop-container app"},
		{name: "... which have been stopped", waits: "box", observed: pod.Observed{Sandboxes: []pod.Sandbox{box}, Containers: []pod.Container{ended}}, want: "stop-sandbox box, create-sandbox "},
		{name: "container", waits: "app", platform: "windows-2022", observed: pod.Observed{Sandboxes: []pod.Sandbox{attached}, Containers: []pod.Container{app}}, want: "attach-network app"},
		{name: "no sandbox", waits: "app", platform: "windows-2016", observed: pod.Observed{Containers: []pod.Container{app}}, want: "attach-network app"},
		{name: "the pod ends", waits: "box", phase: pod.Terminating, observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, want: "stop-sandbox box"},
		{name: "the pod ends while it is attached", waits: "box", phase: pod.Terminating, observed: pod.Observed{Sandboxes: []pod.Sandbox{box}}, busy: WorkerStep{Task: AttachNetwork, Subject: Subject{ID: "box"}}},
	} {
		seen := Seen{Node: Node{Platform: platforms[test.platform]}, Engine: test.observed, Network: pod.Attachments{}, Memory: Memory{Phase: test.phase}}
		for _, id := range strings.Fields(test.waits) {
			seen.Network[pod.EngineID(id)] = pod.Attachment{Waits: true}
		}
		if test.busy != nil {
			seen.Memory.Busy = []Step{test.busy}
		}
		if test.failed {
			seen.Memory.Retries = map[Key]Retry{MemberKey("box"): {Reason: pod.ReasonSandbox, Until: noon.Add(time.Second)}}
		}
		var got []string
		decision := Plan(p, seen, noon)
		for _, s := range decision.Steps {
			got = append(got, s.Verb()+" "+s.Of().ID)
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
		if test.failed && decision.Next != noon.Add(time.Second) {
			t.Errorf("%s: looks again at %s", test.name, decision.Next)
		}
	}
}
