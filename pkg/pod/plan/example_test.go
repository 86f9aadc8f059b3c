package plan_test

import (
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/podspec"
)

// A pod with three containers: web runs and its liveness probe failed, job exited for the second time, log never started.
func ExamplePlan() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	web := v1.Container{Name: "web", Image: "web:1", LivenessProbe: &v1.Probe{}}
	job := v1.Container{Name: "job", Image: "job:1"}
	desired := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{web, job, {Name: "log", Image: "log:1"}}}}
	desired.Name, desired.Namespace, desired.UID = "shop", "default", "uid-1"

	exited := func(attempt int, ago time.Duration) pod.Container {
		return pod.Container{ID: fmt.Sprintf("job-%d", attempt), Name: "job", Kind: podspec.App, Attempt: attempt, SandboxID: "box", Hash: podspec.Hash(&job),
			State: pod.Exited, ExitCode: 1, CreatedAt: now.Add(-ago - time.Second), StartedAt: now.Add(-ago - time.Second), FinishedAt: now.Add(-ago)}
	}
	seen := plan.Seen{
		Node: plan.Node{Platform: pod.Platform{OS: "linux", SharedNetwork: true}},
		Engine: pod.Observed{
			Sandboxes: []pod.Sandbox{{ID: "box", Running: true, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.7")}}},
			Containers: []pod.Container{
				{ID: "web-0", Name: "web", Kind: podspec.App, SandboxID: "box", Hash: podspec.Hash(&web), State: pod.Running, StartedAt: now.Add(-time.Hour)},
				exited(1, 4*time.Second), exited(0, 5*time.Second),
			},
		},
		Memory: plan.Memory{Runs: map[pod.EngineID]*plan.Run{"web-0": {Probes: plan.Verdict{Liveness: plan.Failed}}}},
	}
	fmt.Print(plan.Plan(desired, seen, now))
	// Output:
	// stop-container   web  attempt 0  web-0  grace 30s: Container web failed liveness probe, will be restarted
	// start-container  log  attempt 0  -      the container was never started
	// wait             job                    CrashLoopBackOff: back-off 10s restarting failed container=job pod=shop_default(uid-1)
	// look again at 2026-01-01T12:00:06Z
}
