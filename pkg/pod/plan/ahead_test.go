package plan

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// TestAhead: what starts with a new sandbox, and nothing that waits for something else.
func TestAhead(t *testing.T) {
	now := time.Unix(1000, 0)
	always, never := v1.ContainerRestartPolicyAlways, v1.RestartPolicyNever
	inits := func(sidecar *v1.ContainerRestartPolicy) *v1.Pod {
		return &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, InitContainers: []v1.Container{{Name: "i", RestartPolicy: sidecar}, {Name: "j"}},
			Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
	}
	apps := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: never, Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}}
	ended := func(code int) pod.Container {
		return pod.Container{ID: "1", Name: "a", State: pod.Exited, StartedAt: now, FinishedAt: now, ExitCode: code, SandboxID: "old"}
	}
	for name, test := range map[string]struct {
		pod  *v1.Pod
		seen Seen
		want string
	}{
		"new":           {pod: apps, want: "a/0 b/0"},
		"init":          {pod: inits(nil), want: "i/0"},
		"sidecar":       {pod: inits(&always), want: "i/0"},
		"again":         {pod: inits(nil), seen: Seen{Engine: pod.Observed{Containers: []pod.Container{{ID: "1", Name: "i", State: pod.Created}}}}, want: "i/0"},
		"another box":   {pod: inits(nil), seen: Seen{Engine: pod.Observed{Containers: []pod.Container{{ID: "1", Name: "i", State: pod.Exited, StartedAt: now, FinishedAt: now}}}}, want: "i/1"},
		"never again":   {pod: apps, seen: Seen{Engine: pod.Observed{Containers: []pod.Container{ended(1)}}}, want: "b/0"},
		"backed off":    {pod: apps, seen: Seen{Memory: Memory{Retries: map[Key]Retry{StartKey("a"): {Until: now.Add(time.Second)}}}}, want: "b/0"},
		"ending":        {pod: apps, seen: Seen{Memory: Memory{Phase: pod.Terminating}}, want: ""},
		"only ended":    {pod: &v1.Pod{Spec: v1.PodSpec{RestartPolicy: never, Containers: []v1.Container{{Name: "a"}}}}, seen: Seen{Engine: pod.Observed{Containers: []pod.Container{ended(0)}}}, want: ""},
		"sandbox again": {pod: apps, seen: Seen{Engine: pod.Observed{Sandboxes: []pod.Sandbox{{ID: "old", Attempt: 0}}}}, want: "a/0 b/0"},
	} {
		test.seen.Node.Platform = pod.Platform{OS: "linux", SharedNetwork: true}
		var got []string
		for _, s := range Ahead(test.pod, test.seen, pod.Step{Action: pod.CreateSandbox, Attempt: len(test.seen.Engine.Sandboxes)}, now) {
			got = append(got, s.Container+"/"+string(rune('0'+s.Attempt)))
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
