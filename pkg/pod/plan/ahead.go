package plan

import (
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// Ahead lists the start-container steps that Plan will give once the sandbox of step, a create-sandbox step that is about to begin, runs and has
// its network. While it starts, they can be prepared.
func Ahead(desired *v1.Pod, seen Seen, step pod.Step, now time.Time) []pod.Step {
	box := pod.Sandbox{ID: "ahead", Attempt: step.Attempt, Running: true, CreatedAt: now, Addresses: []netip.Addr{netip.IPv6Unspecified()}}
	seen.Engine.Sandboxes = slices.Insert(slices.Clone(seen.Engine.Sandboxes), 0, box)
	var out []pod.Step
	for _, s := range Plan(desired, seen, now).Steps {
		if e, ok := s.(EngineStep); ok && e.Action == pod.StartContainer {
			out = append(out, e.Step)
		}
	}
	return out
}
