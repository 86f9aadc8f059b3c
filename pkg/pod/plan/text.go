package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// String is the decision as aligned text: one row per step and per wait, then the outcome. It ends in a newline.
func (d Decision) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range d.Steps {
		of := s.Of()
		name, attempt, id, grace := of.Container, fmt.Sprintf("attempt %d", of.Attempt), of.ID, ""
		if tasked(s, LimitPod) {
			name, attempt = "(pod)", ""
		} else if name == "" {
			name = "(sandbox)"
		} else if of.Kind != podspec.App {
			name += " (" + string(of.Kind) + ")"
		}
		if id == "" {
			id = "-"
		}
		if does(s, pod.StopContainer) || tasked(s, PreStop) {
			grace = fmt.Sprintf("grace %s: ", of.Grace)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s%s\n", s.Verb(), name, attempt, id, grace, of.Reason)
	}
	for _, wait := range d.Waits {
		name := wait.Container
		if name == "" {
			name = "(sandbox)"
		}
		fmt.Fprintf(w, "wait\t%s\t\t\t%s: %s\n", name, wait.Reason, wait.Message)
	}
	w.Flush()
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.TrimRight(line, " \n")+"\n")
	}
	switch {
	case d.End != nil:
		lines = append(lines, fmt.Sprintf("the pod ends: %s: %s\n", d.End.Reason, d.End.Message))
	case d.Done:
		lines = append(lines, "done\n")
	case len(d.Steps) == 0 && len(d.Waits) == 0:
		lines = append(lines, "nothing to do\n")
	}
	if !d.Next.IsZero() {
		lines = append(lines, "look again at "+d.Next.UTC().Format(time.RFC3339)+"\n")
	}
	return strings.Join(lines, "")
}

// Explain prints each step until the pod runs, for a host of the given platform that has observed. Each plan is followed by the engine's
// expected state after it. It changes nothing. `kubelet plan` uses it.
func Explain(desired *v1.Pod, observed pod.Observed, platform pod.Platform, now time.Time) string {
	var b strings.Builder
	seen := &Seen{Node: Node{Platform: platform}, Engine: observed, Memory: Memory{Last: desired.Status}}
	seen.Memory.Recall(desired)
	seen.Engine.Containers, seen.Engine.Sandboxes = slices.Clone(observed.Containers), slices.Clone(observed.Sandboxes)
	for round := 1; round <= 100; round++ {
		d := Plan(desired, *seen, now)
		if len(d.Steps) == 0 || d.End != nil {
			b.WriteString(d.String())
			break
		}
		fmt.Fprintf(&b, "%d.\n%s", round, d)
		for _, s := range d.Steps {
			switch s := s.(type) {
			case EngineStep:
				imagineEngine(&seen.Engine, s.Step, now)
			case WorkerStep:
				imagineWorker(seen, s)
			}
		}
		seen.assumeSuccess(desired, now)
	}
	return b.String()
}

// exampleAddress is the example for the address that a sandbox would get.
var exampleAddress = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// imagineEngine simulates one step of the Runtime.
func imagineEngine(engine *pod.Observed, s pod.Step, now time.Time) {
	switch s.Action {
	case pod.CreateSandbox:
		engine.Sandboxes = append([]pod.Sandbox{{ID: fmt.Sprintf("sandbox-%d", s.Attempt), Attempt: s.Attempt, Running: true, CreatedAt: now, Addresses: []netip.Addr{exampleAddress}}}, engine.Sandboxes...)
	case pod.StopSandbox:
		for i := range engine.Sandboxes {
			engine.Sandboxes[i].Running = engine.Sandboxes[i].Running && engine.Sandboxes[i].ID != s.ID
		}
	case pod.RemoveSandbox:
		engine.Sandboxes = slices.DeleteFunc(engine.Sandboxes, func(b pod.Sandbox) bool { return b.ID == s.ID })
	case pod.StartContainer:
		c := pod.Container{ID: fmt.Sprintf("%s-%d", s.Container, s.Attempt), Name: s.Container, Kind: s.Kind, Attempt: s.Attempt, State: pod.Running, CreatedAt: now, StartedAt: now}
		if box := engine.NewestSandbox(); box != nil {
			c.SandboxID = box.ID
		}
		engine.Containers = append([]pod.Container{c}, engine.Containers...)
	case pod.RemoveContainer:
		engine.Containers = slices.DeleteFunc(engine.Containers, func(c pod.Container) bool { return c.ID == s.ID })
	case pod.StopContainer, pod.UpdateContainer:
		for i := range engine.Containers {
			c := &engine.Containers[i]
			switch {
			case c.ID != s.ID:
			case s.Action == pod.UpdateContainer:
				c.Resources = s.Resources
			default:
				c.State, c.FinishedAt = pod.Exited, now
			}
		}
	}
}

// imagineWorker simulates one step of the worker.
func imagineWorker(seen *Seen, s WorkerStep) {
	switch s.Task {
	case ChooseRuntime: // the RuntimeClass is not available: its name must suffice
		seen.Memory.Handler = new(strings.TrimPrefix(s.Reason, classReason))
	case AttachNetwork:
		delete(seen.Network, pod.EngineID(s.ID))
	case PostStart:
		seen.Memory.Note(s.ID).Hooks.PostStart = Passed
	case PreStop:
		seen.Memory.Note(s.ID).Hooks.PreStop = true
	case LimitPod:
		seen.Cgroup = s.Resources
	}
}

// assumeSuccess assumes that startup probes pass and init containers succeed.
func (s *Seen) assumeSuccess(desired *v1.Pod, now time.Time) {
	for i := range s.Engine.Containers {
		c := &s.Engine.Containers[i]
		kind, spec, ok := podspec.FindContainer(desired, c.Name)
		if !ok || c.State != pod.Running {
			continue
		}
		if c.Hash == "" {
			c.Hash = podspec.Hash(spec)
		}
		s.Memory.Note(c.ID).Probes.Startup = Passed
		if kind == podspec.Init && !podspec.IsSidecar(spec) && s.Memory.PostStarted(spec, c.ID) {
			c.State, c.FinishedAt = pod.Exited, now
		}
	}
}
