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

// String is the decision as aligned text: a row per step and per wait, then how it ends. It ends in a newline.
func (d Decision) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range d.Steps {
		name, attempt, id, grace := s.Container, fmt.Sprintf("attempt %d", s.Attempt), s.ID, ""
		if s.Action == pod.UpdatePod {
			name, attempt = "(pod)", ""
		} else if name == "" {
			name = "(sandbox)"
		} else if s.Kind != podspec.App {
			name += " (" + string(s.Kind) + ")"
		}
		if id == "" {
			id = "-"
		}
		if s.Action == pod.StopContainer || s.Action == PreStop {
			grace = fmt.Sprintf("grace %s: ", s.Grace)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s%s\n", s.Action, name, attempt, id, grace, s.Reason)
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

// Explain tells what would be done for pod, step by step until it runs, on a host of such a platform that has observed: each plan is
// followed by what the engine would have after it. Nothing is touched. It serves `kubelet plan`.
func Explain(pod *v1.Pod, observed pod.Observed, platform pod.Platform, now time.Time) string {
	var b strings.Builder
	know := Knowledge{Platform: platform, Last: pod.Status, Hooks: map[string]Hooks{}, Probes: map[string]Verdict{}}
	know.Recall(pod)
	observed.Containers, observed.Sandboxes = slices.Clone(observed.Containers), slices.Clone(observed.Sandboxes)
	for round := 1; round <= 100; round++ {
		d := Plan(pod, observed, know, now)
		if len(d.Steps) == 0 || d.End != nil {
			b.WriteString(d.String())
			break
		}
		fmt.Fprintf(&b, "%d.\n%s", round, d)
		for _, s := range d.Steps {
			imagine(&observed, &know, s, now)
		}
		know.settle(pod, &observed, now)
	}
	return b.String()
}

// exampleAddress stands for the address that a sandbox would get.
var exampleAddress = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// imagine does one step on paper.
func imagine(observed *pod.Observed, know *Knowledge, s pod.Step, now time.Time) {
	drop := func(all []pod.Container) (out []pod.Container) {
		for _, c := range all {
			if c.ID != s.ID {
				out = append(out, c)
			}
		}
		return out
	}
	box := observed.NewestSandbox()
	switch s.Action {
	case pod.CreateSandbox:
		observed.Sandboxes = append([]pod.Sandbox{{ID: fmt.Sprintf("sandbox-%d", s.Attempt), Attempt: s.Attempt, Running: true, CreatedAt: now, Addresses: []netip.Addr{exampleAddress}}}, observed.Sandboxes...)
	case pod.StopSandbox:
		for i := range observed.Sandboxes {
			observed.Sandboxes[i].Running = observed.Sandboxes[i].Running && observed.Sandboxes[i].ID != s.ID
		}
	case pod.RemoveSandbox:
		var rest []pod.Sandbox
		for _, x := range observed.Sandboxes {
			if x.ID != s.ID {
				rest = append(rest, x)
			}
		}
		observed.Sandboxes = rest
	case pod.StartContainer:
		c := pod.Container{ID: fmt.Sprintf("%s-%d", s.Container, s.Attempt), Name: s.Container, Kind: s.Kind, Attempt: s.Attempt, State: pod.Running, CreatedAt: now, StartedAt: now}
		if box != nil {
			c.SandboxID = box.ID
		}
		observed.Containers = append([]pod.Container{c}, observed.Containers...)
	case pod.StopContainer:
		for i := range observed.Containers {
			if observed.Containers[i].ID == s.ID {
				observed.Containers[i].State, observed.Containers[i].FinishedAt = pod.Exited, now
			}
		}
	case pod.RemoveContainer:
		observed.Containers = drop(observed.Containers)
	case pod.UpdateContainer:
		for i := range observed.Containers {
			if observed.Containers[i].ID == s.ID {
				observed.Containers[i].Resources = s.Resources
			}
		}
	case pod.UpdatePod:
		observed.Cgroup = s.Resources
	case PostStart:
		h := know.Hooks[s.ID]
		h.PostStart = Passed
		know.Hooks[s.ID] = h
	case ChooseRuntime: // the class itself is not here: its name has to do
		know.Handler = new(strings.TrimPrefix(s.Reason, classReason))
	case PreStop:
		h := know.Hooks[s.ID]
		h.PreStop = true
		know.Hooks[s.ID] = h
	}
}

// settle supposes that all goes well: startup probes pass and init containers succeed.
func (k *Knowledge) settle(p *v1.Pod, observed *pod.Observed, now time.Time) {
	for i := range observed.Containers {
		c := &observed.Containers[i]
		kind, spec, ok := podspec.FindContainer(p, c.Name)
		if !ok || c.State != pod.Running {
			continue
		}
		if c.Hash == "" {
			c.Hash = podspec.Hash(spec)
		}
		v := k.Probes[c.ID]
		v.Startup = Passed
		k.Probes[c.ID] = v
		if kind == podspec.Init && !podspec.IsSidecar(spec) && k.PostStarted(spec, c.ID) {
			c.State, c.FinishedAt = pod.Exited, now
		}
	}
}
