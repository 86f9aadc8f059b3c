package worker_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/podtest"
	"github.com/winkube/winkube/pkg/pod/start"
	"github.com/winkube/winkube/pkg/pod/worker"
	"github.com/winkube/winkube/pkg/podspec"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata")

var linux = pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}

// world is a node with everything around a Manager. A test can stop and recreate the Manager; the rest stays.
type world struct {
	log      *podtest.Log
	engine   *podtest.Engine
	api      *podtest.API
	disk     *podtest.Disk
	cgroups  *podtest.Cgroups // nil except on Linux
	admitter *podtest.Admitter
	platform pod.Platform
	timing   pod.Timing   // nil: nothing is measured
	attacher pod.Attacher // nil: the engine attaches

	manager *worker.Manager
	cancel  context.CancelFunc
	ended   chan error
}

func newWorld(platform pod.Platform) *world {
	log := podtest.NewLog()
	w := &world{
		log: log, engine: podtest.NewEngine(log, platform), api: podtest.NewAPI(log), disk: podtest.NewDisk(log),
		admitter: &podtest.Admitter{Log: log}, platform: platform,
	}
	if platform.OS == "linux" {
		w.cgroups = podtest.NewCgroups(log, w.engine)
	}
	return w
}

func hostIPs() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.168.1.1")} }

// starts is how many sandboxes may start at a time.
const starts = 3

// begin starts a new Manager.
func (w *world) begin() {
	events := &podtest.Events{Log: w.log}
	cfg := start.Config{
		NodeName: "node1", Platform: w.platform, ClusterDomain: "cluster.local", ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, HostIPs: hostIPs,
		Capacity: func() v1.ResourceList { return v1.ResourceList{} },
	}
	puller := start.NewPuller(cfg, start.PullerParts{Images: podtest.Images{}, Objects: w.api, Recorder: events, Clock: clock.RealClock{}})
	resolver := start.New(cfg, puller, w.disk, podtest.Network{})
	former := w.admitter
	w.admitter = &podtest.Admitter{Log: w.log, Max: former.Max, Ask: former.Ask}
	w.admitter.MaxCPU.Store(former.MaxCPU.Load())
	parts := worker.Parts{
		Source: w.api, Runtime: w.engine, Resolver: resolver, Volumes: w.disk, Objects: w.api, Status: w.api, Admitter: w.admitter,
		Prober: w.engine, Executor: w.engine, Events: events, Timing: w.timing, Attacher: w.attacher, Clock: clock.RealClock{},
	}
	if w.cgroups != nil {
		parts.Cgroups = w.cgroups
	}
	w.manager = worker.New(worker.Config{Platform: w.platform, HostIPs: hostIPs, Starts: starts}, parts)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan error, 1)
	manager, ended := w.manager, w.ended
	go func() { ended <- manager.Run(ctx) }()
}

// kill stops the Manager at its current state.
func (w *world) kill() {
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.cancel = nil
	}
}

// check fails the test for anything that must never happen.
func (w *world) check(t *testing.T) {
	t.Helper()
	for _, v := range append(w.engine.Violations, w.api.Violations...) {
		t.Errorf("violation: %s", v)
	}
	for id, n := range w.engine.Starts() {
		if n > 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
}

func parsePod(t *testing.T, data []byte) *v1.Pod {
	t.Helper()
	var p v1.Pod
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// TestFlows runs the scripts of testdata/flows. A script is a list of lines, each a command and its arguments. Its output is compared with
// the file's part "want".
func TestFlows(t *testing.T) {
	files, err := filepath.Glob("testdata/flows/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string][]byte{}
			for _, f := range archive.Files {
				parts[f.Name] = f.Data
			}
			var got bytes.Buffer
			synctest.Test(t, func(t *testing.T) { runScript(t, string(archive.Comment), parts, &got) })
			if *update {
				for i := range archive.Files {
					if archive.Files[i].Name == "want" {
						archive.Files[i].Data = got.Bytes()
					}
				}
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(parts["want"]); got.String() != want {
				t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
			}
		})
	}
}

func runScript(t *testing.T, script string, parts map[string][]byte, out *bytes.Buffer) {
	platform := linux
	if data, ok := parts["platform"]; ok {
		platform = pod.Platform{}
		if err := yaml.Unmarshal(data, &platform); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(platform)
	w.begin()
	defer w.kill()
	synctest.Wait()
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		fmt.Fprintf(out, "> %s\n", strings.Join(words, " "))
		if err := w.command(t, words, parts, out); err != nil {
			t.Fatalf("%s: %v\n%s\n%s", strings.TrimSpace(line), err, out.String(), w.log.Take())
		}
		synctest.Wait()
	}
	w.check(t)
}

func (w *world) command(t *testing.T, words []string, parts map[string][]byte, out *bytes.Buffer) error {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int {
		n, err := strconv.Atoi(arg(i))
		if err != nil {
			t.Fatalf("%v: word %d is no number", words, i)
		}
		return n
	}
	switch words[0] {
	case "create":
		w.api.Create(parsePod(t, parts[arg(1)]))
	case "static":
		p := parsePod(t, parts[arg(1)])
		w.api.CreateStatic(p)
	case "unstatic":
		w.api.RemoveStatic(parsePod(t, parts[arg(1)]).UID)
	case "image":
		return w.api.Update(arg(1), func(p *v1.Pod) { p.Spec.Containers[0].Image = arg(2) })
	case "debug":
		return w.api.Update(arg(1), func(p *v1.Pod) {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: arg(2), Image: "busybox:1"}})
		})
	case "resize":
		return w.api.Update(arg(1), func(p *v1.Pod) {
			_, c, _ := podspec.FindContainer(p, arg(2))
			name, amount := v1.ResourceName(arg(3)), resource.MustParse(arg(4))
			c.Resources.Requests[name], c.Resources.Limits[name] = amount, amount
		})
	case "delete":
		return w.api.Remove(arg(1), int64(number(2)))
	case "evict":
		w.manager.Evict(w.api.Pod(arg(1)).UID, pod.Eviction{Rejection: pod.Rejection{Reason: "Evicted", Message: strings.Join(words[2:], " ")}, Grace: time.Second})
	case "gate":
		return w.api.Update(arg(1), func(p *v1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.PodConditionType(arg(2)), Status: v1.ConditionTrue})
		})
	case "secret":
		w.api.SetSecret(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: arg(1)}, Data: map[string][]byte{"key": []byte("value")}})
	case "wait":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			return err
		}
		time.Sleep(d)
	case "exit":
		return w.engine.Exit(arg(1), number(2), strings.Join(words[3:], " "))
	case "lose":
		w.engine.Lose(arg(1))
	case "probe":
		w.engine.SetProbe(strings.TrimPrefix(arg(1), "*"), arg(2), arg(3) == "pass")
	case "hang":
		d, err := time.ParseDuration(arg(2))
		if err != nil {
			return err
		}
		w.engine.Hang(arg(1), d)
	case "forget":
		w.engine.Forget(arg(1))
	case "stubborn":
		w.engine.Stubborn(arg(1))
	case "fail":
		w.engine.Fail(arg(1), arg(2), number(3), errors.New(strings.Join(words[4:], " ")))
	case "disk-fail":
		w.disk.Fail(number(1))
	case "cgroup-put":
		w.cgroups.Put("uid-older")
	case "cgroup-drop":
		w.cgroups.Drop(w.api.Pod(arg(1)).UID)
	case "resize-pod":
		return w.api.Update(arg(1), func(p *v1.Pod) {
			name, amount := v1.ResourceName(arg(2)), resource.MustParse(arg(3))
			p.Spec.Resources.Requests[name], p.Spec.Resources.Limits[name] = amount, amount
		})
	case "disk-put":
		w.disk.Put("uid-old")
	case "max-pods":
		w.admitter.Max = number(1)
	case "max-cpu":
		w.admitter.MaxCPU.Store(int64(number(1)))
	case "engine":
		switch arg(1) {
		case "restart":
			w.engine.Restart()
		default:
			w.engine.SetDown(arg(1) == "down")
		}
	case "api":
		w.api.SetDown(arg(1) == "down")
	case "kill":
		w.kill()
	case "begin":
		w.begin()
	default:
		return w.show(arg, out)
	}
	return nil
}

// show runs the commands with output.
func (w *world) show(arg func(int) string, out *bytes.Buffer) error {
	switch arg(0) {
	case "log":
		out.WriteString(w.log.Take())
	case "pods":
		out.WriteString(w.api.String())
	case "readiness":
		fmt.Fprintln(out, w.api.Readiness(arg(1)))
	case "containers":
		out.WriteString(w.engine.String())
	case "disk":
		out.WriteString(w.disk.String())
	case "cgroups":
		out.WriteString(w.cgroups.String())
	case "resources":
		p := w.api.Pod(arg(1))
		if p == nil {
			return fmt.Errorf("no pod %s", arg(1))
		}
		amounts := func(list v1.ResourceList) string { return list.Cpu().String() + "/" + list.Memory().String() }
		for _, c := range p.Status.ContainerStatuses {
			fmt.Fprintf(out, "%s restarts=%d allocated %s requests %s limits %s\n", c.Name, c.RestartCount, amounts(c.AllocatedResources),
				amounts(c.Resources.Requests), amounts(c.Resources.Limits))
		}
		if all := p.Status.Resources; all != nil {
			fmt.Fprintf(out, "pod allocated %s requests %s limits %s\n", amounts(p.Status.AllocatedResources), amounts(all.Requests), amounts(all.Limits))
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				fmt.Fprintf(out, "%s %s of %d: %s\n", c.Type, c.Reason, c.ObservedGeneration, c.Message)
			}
		}
	case "table":
		w.manager.DebugText(out)
	case "status":
		p := w.api.Pod(arg(1))
		if p == nil {
			return fmt.Errorf("no pod %s", arg(1))
		}
		data, err := yaml.Marshal(p.Status)
		if err != nil {
			return err
		}
		out.Write(data)
	default:
		return errors.New("unknown command")
	}
	return nil
}
