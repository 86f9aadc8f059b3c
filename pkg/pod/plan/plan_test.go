package plan

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// situation is a case of testdata/plan; it becomes the input of Plan and Status. Times are seconds before now, which is noon on 1 January
// 2026.
type situation struct {
	Handler    *string   `json:"handler"`
	Platform   string    `json:"platform"` // linux (the default), windows-2016, windows-2022; windows-gate: with HyperVContainer
	Phase      pod.Phase `json:"phase"`
	Remove     bool      `json:"remove"`
	Deadline   int       `json:"deadline"` // seconds from now
	Ended      *pod.Rejection
	Sandboxes  []string           `json:"sandboxes"`  // "ID attempt running|dead", newest first
	Containers []string           `json:"containers"` // "NAME attempt state [code] [created/started/finished seconds ago]"
	Box        string             `json:"box"`        // sandbox of the containers without one
	Probes     map[string]Verdict `json:"probes"`
	Hooks      map[string]Hooks   `json:"hooks"`
	Stops      map[string]int     `json:"stops"`
	Failures   map[string]string  `json:"failures"`
	Busy       []pod.Step         `json:"busy"`
	Last       *v1.PodStatus      `json:"last"`
	Resources  map[string]string  `json:"resources"` // by container id, in the format of Resources.String
	Updates    map[string]string  `json:"updates"`   // likewise
	Resize     *pod.Rejection     `json:"resize"`
}

var update = flag.Bool("update", false, "rewrite the expected parts of testdata")

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

var platforms = map[string]pod.Platform{
	"":             {OS: "linux", Arch: "amd64", SharedNetwork: true},
	"linux":        {OS: "linux", Arch: "amd64", SharedNetwork: true},
	"windows-2016": {OS: "windows", Arch: "amd64", Build: 14393},
	"windows-2022": {OS: "windows", Arch: "amd64", Build: 20348, SharedNetwork: true},
	"windows-gate": {OS: "windows", Arch: "amd64", Build: 20348, SharedNetwork: true, HyperVContainer: true},
}

func (s situation) build(t *testing.T, p *v1.Pod) Seen {
	t.Helper()
	seen := Seen{Node: Node{Platform: platforms[s.Platform], HostIPs: []netip.Addr{netip.MustParseAddr("192.168.1.1")}}}
	m := &seen.Memory
	m.Handler, m.Phase, m.Retries = s.Handler, s.Phase, map[Key]Retry{}
	m.End = End{Remove: s.Remove, Why: s.Ended, Deadline: noon.Add(time.Duration(s.Deadline) * time.Second)}
	m.Resize.Pending = s.Resize
	for _, step := range s.Busy {
		m.Busy = append(m.Busy, stepOf(step))
	}
	if s.Last != nil {
		m.Last = *s.Last
	}
	for id, verdict := range s.Probes {
		m.Note(id).Probes = verdict
	}
	for id, hooks := range s.Hooks {
		m.Note(id).Hooks = hooks
	}
	for id, left := range s.Stops {
		m.Note(id).Stop = noon.Add(time.Duration(left) * time.Second)
	}
	for id, text := range s.Updates {
		m.Note(id).Told = podspec.ParseResources(text)
	}
	for of, reason := range s.Failures {
		key := MemberKey(of)
		if id, ok := strings.CutPrefix(of, "resize "); ok {
			key = UpdateKey(id)
		} else if of == "" {
			key = SandboxKey
		} else if _, _, ok := podspec.FindContainer(p, of); ok {
			key = StartKey(of)
		}
		m.Retries[key] = Retry{Reason: reason, Message: "why", Until: noon.Add(5 * time.Second)}
	}
	o := &seen.Engine
	for _, line := range s.Sandboxes {
		box := pod.Sandbox{CreatedAt: noon.Add(-time.Hour)}
		var state string
		if _, err := fmt.Sscan(line, &box.ID, &box.Attempt, &state); err != nil {
			t.Fatalf("sandbox %q: %v", line, err)
		}
		box.Unstarted = state == "unstarted"
		if box.Running = state == "running"; box.Running {
			box.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
		}
		o.Sandboxes = append(o.Sandboxes, box)
	}
	for _, line := range s.Containers {
		c := pod.Container{SandboxID: s.Box}
		var created, started, finished int
		if n, err := fmt.Sscan(line, &c.Name, &c.Attempt, &c.State, &c.ExitCode, &created, &started, &finished); n < 3 {
			t.Fatalf("container %q: %v", line, err)
		}
		if name, box, ok := strings.Cut(c.Name, "@"); ok {
			c.Name, c.SandboxID = name, box
		}
		if name, ok := strings.CutSuffix(c.Name, "!"); ok {
			c.Name, c.Hash = name, "another"
		}
		kind, spec, ok := podspec.FindContainer(p, c.Name)
		if ok {
			c.Kind, c.Image = kind, spec.Image
			if c.Hash == "" {
				c.Hash = podspec.Hash(spec)
			}
		}
		c.ID = fmt.Sprintf("%s-%d", c.Name, c.Attempt)
		c.ImageID = "docker://sha256:1"
		if text, ok := s.Resources[c.ID]; ok {
			r := podspec.ParseResources(text)
			c.Resources = &r
		}
		ago := func(n int) time.Time { return noon.Add(-time.Duration(n) * time.Second) }
		c.CreatedAt = ago(created)
		if c.State != pod.Created {
			c.StartedAt = ago(started)
		}
		if c.State == pod.Exited {
			c.FinishedAt = ago(finished)
		}
		o.Containers = append(o.Containers, c)
	}
	return seen
}

// stepOf returns the Step for a verb.
func stepOf(s pod.Step) Step {
	switch task := Task(s.Action); task {
	case ChooseRuntime, AttachNetwork, PostStart, PreStop, LimitPod:
		return WorkerStep{Task: task, Subject: Subject{Container: s.Container, Kind: s.Kind, ID: s.ID, Attempt: s.Attempt}}
	}
	return EngineStep{s}
}

// TestPlanAndStatus runs the cases of testdata/plan: a pod, and situations for which Plan and Status are called.
func TestPlanAndStatus(t *testing.T) {
	files, err := filepath.Glob("testdata/plan/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var p v1.Pod
			var out []txtar.File
			var got, want strings.Builder
			for _, f := range archive.Files {
				switch {
				case f.Name == "pod":
					p = v1.Pod{}
					if err := yaml.UnmarshalStrict(f.Data, &p); err != nil {
						t.Fatal(err)
					}
					p.UID, p.Namespace, p.Generation = "uid", "default", 3
				case strings.HasPrefix(f.Name, "plan:"):
					want.WriteString(f.Name + "\n" + string(f.Data))
					continue
				default:
					var s situation
					if err := yaml.UnmarshalStrict(f.Data, &s); err != nil {
						t.Fatalf("%s: %v", f.Name, err)
					}
					seen := s.build(t, &p)
					text := Plan(&p, seen, noon).String() + statusText(Status(&p, seen, noon))
					out = append(out, f, txtar.File{Name: "plan: " + f.Name, Data: []byte(text)})
					got.WriteString("plan: " + f.Name + "\n" + text)
					continue
				}
				out = append(out, f)
			}
			if *update {
				archive.Files = out
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got.String() != want.String() {
				t.Errorf("got:\n%s\nwant:\n%s", got.String(), want.String())
			}
		})
	}
}

// statusText is a status with what the flow scripts omit: messages and false conditions.
func statusText(s v1.PodStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "phase %s", s.Phase)
	if s.Reason != "" {
		fmt.Fprintf(&b, " %s: %s", s.Reason, s.Message)
	}
	b.WriteString("\n")
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for _, c := range list {
			fmt.Fprintf(&b, "  %s restarts %d ready %t started %t: %s; last %s\n", c.Name, c.RestartCount, c.Ready, podspec.IsTrue(c.Started), stateText(c.State), stateText(c.LastTerminationState))
		}
	}
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, "  %s %s", c.Type, c.Status)
		if c.Reason != "" {
			fmt.Fprintf(&b, " %s", c.Reason)
		}
		if c.Message != "" {
			fmt.Fprintf(&b, ": %s", c.Message)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func stateText(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running since " + s.Running.StartedAt.UTC().Format(time.TimeOnly)
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason + " " + s.Waiting.Message)
	case s.Terminated != nil:
		return strings.TrimSpace(fmt.Sprintf("terminated %s %d %s", s.Terminated.Reason, s.Terminated.ExitCode, s.Terminated.Message))
	}
	return "-"
}

// TestPlanIsIdempotent plans each situation again with all steps in flight: nothing may be planned twice.
func TestPlanIsIdempotent(t *testing.T) {
	files, _ := filepath.Glob("testdata/plan/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p v1.Pod
		for _, f := range archive.Files {
			if strings.HasPrefix(f.Name, "plan:") {
				continue
			}
			if f.Name == "pod" {
				p = v1.Pod{}
				if err := yaml.Unmarshal(f.Data, &p); err != nil {
					t.Fatal(err)
				}
				continue
			}
			var s situation
			if err := yaml.Unmarshal(f.Data, &s); err != nil {
				t.Fatal(err)
			}
			seen := s.build(t, &p)
			steps := Plan(&p, seen, noon).Steps
			m := &seen.Memory
			m.Busy = append(m.Busy, steps...)
			for _, step := range steps {
				if does(step, pod.StopContainer) || tasked(step, PreStop) {
					run := m.Note(step.Of().ID)
					if run.Stop.IsZero() {
						run.Stop = noon.Add(step.Of().Grace)
					}
					if m.Phase != pod.Syncing && m.End.Deadline.Before(run.Stop) {
						run.Stop = m.End.Deadline
					}
				}
			}
			if again := Plan(&p, seen, noon).Steps; len(again) > 0 {
				t.Errorf("%s %s: planned again: %v", file, f.Name, again)
			}
		}
	}
}

func TestCrashDelay(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	attempt := func(n, created, finished int) past {
		return past{Container: pod.Container{Attempt: n, Hash: "h", State: pod.Exited, CreatedAt: at(created), StartedAt: at(created), FinishedAt: at(finished)}}
	}
	ten := 10 * time.Second
	for _, c := range []struct {
		name    string
		list    []past
		applied *time.Duration
		most    time.Duration
		want    time.Duration
	}{
		{"never ran", nil, nil, 0, 0},
		{"first end", []past{attempt(0, 0, 5)}, nil, 0, 0},
		{"second end, started immediately", []past{attempt(1, 5, 6), attempt(0, 0, 5)}, nil, 0, 10 * time.Second},
		{"after 10 s", []past{attempt(2, 16, 17), attempt(1, 5, 6)}, nil, 0, 20 * time.Second},
		{"after 10 s and a slow pull", []past{attempt(2, 45, 47), attempt(1, 5, 6)}, &ten, 0, 20 * time.Second},
		{"after 300 s", []past{attempt(9, 310, 311), attempt(8, 5, 6)}, nil, 0, 300 * time.Second},
		{"nothing before is known", []past{attempt(7, 310, 311)}, nil, 0, 10 * time.Second},
		{"ran long", []past{attempt(5, 0, 601), attempt(4, -300, -200)}, nil, 0, 0},
		{"before the host's last boot", []past{{Container: pod.Container{Attempt: 3, Hash: "h", State: pod.Exited, EarlierBoot: true, CreatedAt: at(45), StartedAt: at(45),
			FinishedAt: at(47)}}, attempt(2, 16, 17)}, nil, 0, 0},
		{"second end after it", []past{attempt(4, 50, 51), {Container: pod.Container{Attempt: 3, Hash: "h", State: pod.Exited, EarlierBoot: true, CreatedAt: at(45),
			FinishedAt: at(47)}}}, nil, 0, 10 * time.Second},
		{"capped", []past{attempt(2, 16, 17), attempt(1, 5, 6)}, nil, 15 * time.Second, 15 * time.Second},
		{"capped below the first delay", []past{attempt(1, 5, 6), attempt(0, 0, 5)}, nil, time.Second, time.Second},
		{"not capped yet", []past{attempt(1, 5, 6), attempt(0, 0, 5)}, nil, 15 * time.Second, 10 * time.Second},
		{"other image", []past{{Container: pod.Container{Attempt: 3, Hash: "old"}}}, nil, 0, 0},
	} {
		if got := crashDelay(c.list, "h", c.applied, c.most); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

const explainedPod = `
metadata: {name: web}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 30
  initContainers:
  - {name: side, image: "s:1", restartPolicy: Always, startupProbe: {exec: {command: [up]}, periodSeconds: 1}}
  containers:
  - {name: a, image: "a:1", lifecycle: {preStop: {exec: {command: [bye]}}}}
  - {name: b, image: "b:1", lifecycle: {postStart: {exec: {command: [hello]}}}, readinessProbe: {exec: {command: [ready]}, periodSeconds: 1}}
`

func TestExplain(t *testing.T) {
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(explainedPod), p); err != nil {
		t.Fatal(err)
	}
	got := Explain(p, pod.Observed{}, platforms["linux"], time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	const want = `1.
create-sandbox  (sandbox)  attempt 0  -  the pod has no sandbox
2.
start-container  side (init)  attempt 0  -  the container was never started
3.
start-container  a  attempt 0  -  the container was never started
start-container  b  attempt 0  -  the container was never started
4.
post-start  b  attempt 0  b-0  the container was started
nothing to do
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
