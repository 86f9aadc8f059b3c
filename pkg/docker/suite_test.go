package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// suite runs on every engine.
var suite = []struct {
	name string
	run  func(*testing.T, *rig)
}{
	{"life of a pod", testLife},
	{"steps may be repeated", testRepeat},
	{"leftovers of a crash", testLeftovers},
	{"exit codes and messages", testExits},
	{"a start that fails", testFailedStart},
	{"stop", testStop},
	{"changes", testChanges},
	{"restart of the agent", testAgentRestart},
	{"logs", testLogs},
	{"follow", testFollow},
	{"exec sync", testExecSync},
	{"exec", testExec},
	{"attach", testAttach},
	{"networks", testNetworks},
	{"taken off the network", testTakenOff},
	{"images", testImages},
	{"foreign containers", testForeign},
	{"what an image says", testImageSays},
	{"limits", testLimits},
	{"resize", testResize},
	{"files", testFiles},
}

func TestSuiteFake(t *testing.T) {
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, fakeRig(t, dockertest.Options{}, nil))
		})
	}
}

func TestSuiteFakeOldest(t *testing.T) {
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, fakeRig(t, dockertest.Options{Version: "1.12.6", APIVersion: "1.24"}, nil))
		})
	}
}

func TestSuiteFakeNewest(t *testing.T) {
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, fakeRig(t, dockertest.Options{Version: "29.1.0", APIVersion: "1.52", MinAPIVersion: "1.44", Snapshotter: "overlayfs"}, nil))
		})
	}
}

func TestSuiteReal(t *testing.T) {
	for _, test := range suite {
		t.Run(test.name, func(t *testing.T) { test.run(t, realRig(t, nil)) })
	}
}

func testLife(t *testing.T, r *rig) {
	p := r.pod("life", []string{"pause"}, []string{"pause"})
	if o := r.observed(p); o.UID != "" || len(o.Containers)+len(o.Sandboxes) > 0 {
		t.Fatalf("before anything was made: %+v", o)
	}
	ids := r.run(p)
	o := r.observed(p)
	if o.UID != p.UID || o.Name != "life" || o.Namespace != "ns" || o.Grace != 7 {
		t.Errorf("pod: %+v", o)
	}
	box := o.Sandboxes[0]
	if len(o.Sandboxes) != 1 || !box.Running || box.Attempt != 0 || box.CreatedAt.IsZero() {
		t.Errorf("sandbox: %+v", o.Sandboxes)
	}
	if len(box.Addresses) != 1 || !netip.MustParsePrefix("10.231.7.0/24").Contains(box.Addresses[0]) {
		t.Errorf("sandbox's addresses: %v", box.Addresses)
	}
	c := r.container(p, "c1")
	if c.ID != ids[1] || c.State != pod.Running || c.Kind != podspec.App || c.SandboxID != box.ID || c.Hash != "5eed" ||
		c.Image != testImage || c.ImageID != r.imageRef() || c.StartedAt.IsZero() || c.HostPID == 0 || len(c.Addresses) != 0 {
		t.Errorf("container: %+v", c)
	}
	all, err := r.ObserveAll(t.Context())
	if err != nil || len(all) != 1 || len(all[p.UID].Containers) != 2 {
		t.Errorf("all: %+v, %v", all, err)
	}

	for _, id := range ids {
		r.apply(p, pod.Step{Action: pod.StopContainer, ID: id, Grace: 5 * time.Second})
	}
	if c := r.container(p, "c0"); c.State != pod.Exited || c.ExitCode != 0 || c.FinishedAt.Before(c.StartedAt) || c.HostPID != 0 {
		t.Errorf("stopped: %+v", c)
	}
	r.apply(p, pod.Step{Action: pod.StopSandbox, ID: box.ID})
	if o := r.observed(p); o.Sandboxes[0].Running || len(o.Sandboxes[0].Addresses) != 0 {
		t.Errorf("stopped sandbox: %+v", o.Sandboxes[0])
	}
	for _, id := range ids {
		r.apply(p, pod.Step{Action: pod.RemoveContainer, ID: id})
	}
	r.apply(p, pod.Step{Action: pod.RemoveSandbox, ID: box.ID})
	if o := r.observed(p); o.UID != "" {
		t.Errorf("after removal: %+v", o)
	}
}

func testRepeat(t *testing.T, r *rig) {
	p := r.pod("repeat", []string{"pause"})
	ids := r.run(p)
	sandbox := r.observed(p).Sandboxes[0].ID
	r.apply(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: "x"}})
	r.apply(p, r.step(p, 0, sandbox))
	if o := r.observed(p); len(o.Sandboxes) != 1 || o.Sandboxes[0].ID != sandbox || len(o.Containers) != 1 || o.Containers[0].ID != ids[0] {
		t.Fatalf("adopted: %+v", o)
	}
	for range 2 {
		r.apply(p, pod.Step{Action: pod.StopContainer, ID: ids[0]})
	}
	r.apply(p, r.step(p, 0, sandbox)) // it has run: nothing to do
	if c := r.container(p, "c0"); c.State != pod.Exited || c.ID != ids[0] {
		t.Errorf("an attempt that has run: %+v", c)
	}
	next := r.step(p, 0, sandbox)
	next.Attempt = 1
	r.apply(p, next)
	if o := r.observed(p); len(o.Containers) != 2 || o.Containers[0].Attempt != 1 || o.Containers[0].State != pod.Running || o.Containers[1].ID != ids[0] {
		t.Errorf("next attempt, newest first: %+v", o.Containers)
	}
	for range 2 {
		r.apply(p, pod.Step{Action: pod.RemoveContainer, ID: ids[0]})
		r.apply(p, pod.Step{Action: pod.StopSandbox, ID: sandbox})
		r.apply(p, pod.Step{Action: pod.RemoveSandbox, ID: sandbox})
	}
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: ids[0]})
}

func testLeftovers(t *testing.T, r *rig) {
	p := r.pod("leftover", []string{"pause"})
	sandbox := r.sandbox(p)
	step := r.step(p, 0, sandbox)
	target, err := r.Target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	creation, err := convert.Container(p, step, target)
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.Create(t.Context(), "create", creation.Name, creation.Config, creation.HostConfig)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.container(p, "c0"); c.State != pod.Created || c.ID != id {
		t.Errorf("half made: %+v", c)
	}
	r.apply(p, step)
	if o := r.observed(p); len(o.Containers) != 1 || o.Containers[0].State != pod.Running || o.Containers[0].ID == id {
		t.Errorf("replaced: %+v", o.Containers)
	}
}

func testExits(t *testing.T, r *rig) {
	p := r.pod("exits", []string{"exit", "3"}, []string{"exit", "0"}, []string{"exit", "4", "it was", "the log"})
	p.Spec.Containers[2].TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	sandbox := r.sandbox(p)
	for i := range p.Spec.Containers {
		step := r.step(p, i, sandbox)
		step.Inputs.TerminationLog = r.file(fmt.Sprintf("log%d", i), []string{strings.Repeat("m", 5000), "", ""}[i])
		r.apply(p, step)
	}
	if c := r.exited(p, "c0"); c.ExitCode != 3 || c.Message != strings.Repeat("m", 4096) || c.Error != "" {
		t.Errorf("c0: %+v", c)
	}
	if c := r.exited(p, "c1"); c.ExitCode != 0 || c.Message != "" {
		t.Errorf("c1: %+v", c)
	}
	if c := r.exited(p, "c2"); c.ExitCode != 4 || c.Message != "it was\nthe log\n" {
		t.Errorf("c2: %+v", c)
	}
}

func testFailedStart(t *testing.T, r *rig) {
	p := r.pod("failed", []string{"pause"})
	p.Spec.Containers[0].Command = []string{"/nonsense"}
	step := r.step(p, 0, r.sandbox(p))
	err := r.Apply(t.Context(), p, step)
	var apply *engine.ApplyError
	if !errors.As(err, &apply) || apply.Reason != engine.ReasonRun || !strings.Contains(apply.Message, "/nonsense") || strings.HasPrefix(apply.Message, "cannot") {
		t.Fatalf("error: %+v", err)
	}
	c := r.container(p, "c0")
	if c.State != pod.Exited || c.ExitCode != 127 || !strings.Contains(c.Error, "/nonsense") || c.StartedAt.IsZero() || c.FinishedAt.IsZero() {
		t.Errorf("what is left: %+v", c)
	}
	step.Inputs.Image.ID = "sha256:" + strings.Repeat("0", 64)
	step.Attempt = 1
	if err := r.Apply(t.Context(), p, step); !errors.As(err, &apply) || apply.Reason != engine.ReasonCreate {
		t.Errorf("no such image: %+v", err)
	}
	step.Container = "other"
	if err := r.Apply(t.Context(), p, step); !errors.As(err, &apply) || apply.Reason != engine.ReasonConfig {
		t.Errorf("no such container: %+v", err)
	}
}

func testStop(t *testing.T, r *rig) {
	p := r.pod("stop", []string{"stubborn"}, []string{"pause"})
	ids := r.run(p)
	start := time.Now()
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: ids[0], Grace: 200 * time.Millisecond})
	if took := time.Since(start); took < 900*time.Millisecond || took >= 10*time.Second {
		t.Errorf("grace of 200 ms, rounded up to 1 s: took %v; Docker's default is 10 s", took)
	}
	if c := r.container(p, "c0"); c.State != pod.Exited || c.ExitCode != 137 {
		t.Errorf("killed: %+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Apply(ctx, p, pod.Step{Action: pod.StopContainer, ID: ids[1], Grace: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("stop with an ended context: %v", err)
	}
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: ids[1]})
	if c := r.container(p, "c1"); c.State != pod.Exited {
		t.Errorf("grace 0: %+v", c)
	}
}

func testChanges(t *testing.T, r *rig) {
	ctx, cancel := context.WithCancel(t.Context())
	changes := r.Changes(ctx)
	if uid := <-changes; uid != "" {
		t.Fatalf("first after connecting: %q", uid)
	}
	p, other := r.pod("changes", []string{"pause"}), r.pod("other", []string{"pause"})
	r.run(p)
	r.run(other)
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: r.container(p, "c0").ID})
	seen := map[types.UID]int{}
	for len(seen) < 2 {
		if seen[<-changes]++; seen["uid-changes"] > 2 {
			t.Fatalf("%v: what changes before it is read must come once", seen)
		}
	}
	if seen["uid-changes"]+seen["uid-other"] > 3 || seen["uid-other"] == 0 {
		t.Errorf("changes: %v", seen)
	}
	if c := r.container(p, "c0"); c.State != pod.Exited {
		t.Errorf("%+v", c)
	}
	cancel()
	for range changes { // closed when ctx ends
	}
}

func testAgentRestart(t *testing.T, r *rig) {
	p := r.pod("again", []string{"pause"}, []string{"exit", "5"})
	r.run(p)
	r.exited(p, "c1")
	before := r.observed(p)
	next, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	after, err := next.Containers.ObserveAll(t.Context())
	if err != nil || fmt.Sprint(after[p.UID]) != fmt.Sprint(before) {
		t.Errorf("after:  %+v\nbefore: %+v\n%v", after[p.UID], before, err)
	}
}

func testNetworks(t *testing.T, r *rig) {
	want := pod.EngineNetwork{
		Name: "wk-suite", Driver: "bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.232.9.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.232.9.1")},
		Options: map[string]string{"com.docker.network.bridge.name": "wk-suite0"},
	}
	t.Cleanup(func() { _ = r.RemoveNetwork(context.Background(), want.Name) })
	for range 2 {
		if err := r.EnsureNetwork(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.Networks(t.Context())
	i := slices.IndexFunc(all, func(n pod.EngineNetwork) bool { return n.Name == want.Name })
	if err != nil || i < 0 || all[i].ID == "" || all[i].Driver != "bridge" || all[i].Subnets[0] != want.Subnets[0] || all[i].Gateways[0] != want.Gateways[0] {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, change := range []func(*pod.EngineNetwork){
		func(n *pod.EngineNetwork) { n.Driver = "macvlan" },
		func(n *pod.EngineNetwork) { n.Subnets = []netip.Prefix{netip.MustParsePrefix("10.232.10.0/24")} },
		func(n *pod.EngineNetwork) { n.Gateways = []netip.Addr{netip.MustParseAddr("10.232.9.2")} },
		func(n *pod.EngineNetwork) { n.Options = map[string]string{"com.docker.network.driver.mtu": "1300"} },
	} {
		other := want
		change(&other)
		var conflict *networks.Conflict
		if err := r.EnsureNetwork(t.Context(), other); !errors.As(err, &conflict) || conflict.Difference == "" {
			t.Errorf("%+v: %v", other, err)
		}
	}
	for range 2 {
		if err := r.RemoveNetwork(t.Context(), want.Name); err != nil {
			t.Error(err)
		}
	}
	p := r.pod("onnet", []string{"pause"})
	r.run(p)
	if err := r.RemoveNetwork(t.Context(), r.net); err == nil || !strings.Contains(err.Error(), "active endpoints") {
		t.Errorf("a network in use: %v", err)
	}
}

// testTakenOff: a pod that a user disconnects from its network is delivered, and can be reconnected with its former address, which must be unique.
func testTakenOff(t *testing.T, r *rig) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	changes := r.Changes(ctx)
	if first := <-changes; first != "" {
		t.Fatalf("first delivered is %q", first)
	}
	p, other := r.pod("cut", []string{"pause"}), r.pod("other", []string{"pause"})
	r.run(p)
	r.run(other)
	if _, err := r.ObserveAll(ctx); err != nil {
		t.Fatal(err)
	}
	addresses := func(of *v1.Pod) []netip.Addr { return r.observed(of).Sandboxes[0].Addresses }
	was, box := addresses(p), r.observed(p).Sandboxes[0].ID
	told := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case _, open := <-changes:
				if !open {
					t.Fatalf("%s: not told", what)
				}
			case <-ctx.Done():
				t.Fatalf("%s: not told", what)
			}
		}
	}
	c, err := r.API(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.NetworkDisconnect(ctx, r.net, box, false); err != nil {
		t.Fatal(err)
	}
	told("taken off", func() bool { return len(addresses(p)) == 0 })
	if members, err := r.Members(ctx, r.net); err != nil || len(members) != 1 {
		t.Errorf("members %v, %v", members, err)
	}
	if err := r.Connect(ctx, r.net, box, addresses(other)); err == nil {
		t.Error("put back with another's address")
	}
	if err := r.Connect(ctx, r.net, box, was); err != nil {
		t.Fatal(err)
	}
	told("put back", func() bool { return slices.Equal(addresses(p), was) })
}

func testImages(t *testing.T, r *rig) {
	for _, name := range []string{testImage, r.image.ID, strings.TrimPrefix(r.image.ID, "sha256:")} {
		if img, found, err := r.Lookup(t.Context(), name); err != nil || !found || img.ID != r.image.ID || img.Ref != r.imageRef() || img.OS != "linux" {
			t.Errorf("%s: %+v, %v, %v", name, img, found, err)
		}
	}
	for _, name := range []string{"winkube.test/other", r.image.ID[len("sha256:"):][:8], "sha256:" + strings.Repeat("0", 64)} {
		if _, found, err := r.Lookup(t.Context(), name); err != nil || found {
			t.Errorf("%s: found %v, %v", name, found, err)
		}
	}
	var apply *engine.ApplyError
	if _, _, err := r.Lookup(t.Context(), "No Such:Name:"); !errors.As(err, &apply) || apply.Reason != engine.ReasonBadImage {
		t.Errorf("bad name: %v", err)
	}
	list, changed, err := r.ListImages(t.Context())
	if err != nil || !changed || len(list.IDs) < 1 || !slices.ContainsFunc(list.Named, func(i v1.ContainerImage) bool { return slices.Contains(i.Names, testImage) && i.SizeBytes > 0 }) {
		t.Errorf("list: %+v, %v", list, err)
	}
	info, err := r.Info(t.Context())
	if err != nil || info.OS != "linux" || info.CPUs < 1 || info.MemoryTotal < 1 || info.APIVersion == "" || info.Version == "" || info.Root == "" {
		t.Errorf("info: %+v, %v", info, err)
	}
}

func testForeign(t *testing.T, r *rig) {
	p := r.pod("foreign", []string{"pause"})
	sandbox := r.sandbox(p)
	target, err := r.Target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	creation, err := convert.Container(p, r.step(p, 0, sandbox), target)
	if err != nil {
		t.Fatal(err)
	}
	delete(creation.Config.Labels, identity.LabelNode) // like another agent's
	id, err := r.Create(t.Context(), "create", creation.Name, creation.Config, creation.HostConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Remove(context.Background(), id) })
	if o := r.observed(p); len(o.Containers) != 0 {
		t.Errorf("observed: %+v", o.Containers)
	}
	var apply *engine.ApplyError
	if err := r.Apply(t.Context(), p, r.step(p, 0, sandbox)); !errors.As(err, &apply) || !strings.Contains(err.Error(), "which this kubelet did not create") {
		t.Errorf("its name is taken: %v", err)
	}
	if _, err := r.Inspect(t.Context(), id); err != nil {
		t.Errorf("it was touched: %v", err)
	}
}

func testLimits(t *testing.T, r *rig) {
	r.cfg.LogMaxSize, r.cfg.LogMaxFiles = 10<<20, 3
	r.rebuild(ordinary)
	p := r.pod("limits", []string{"env", "GREETING"})
	no := false
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
		AllowPrivilegeEscalation: &no, Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_BIND_SERVICE"}},
	}
	p.Spec.Containers[0].Resources = resources("250m", "100Mi")
	step := r.step(p, 0, r.sandbox(p))
	step.Inputs.Env = []pod.Env{{Name: "GREETING", Value: "first"}, {Name: "GREETING", Value: "last"}}
	step.Inputs.OOMScoreAdj = 999
	step.Inputs.Mounts = []pod.Mount{{HostPath: r.dir, ContainerPath: "/data", ReadOnly: true}}
	step.Inputs.Files = []pod.File{{HostPath: r.file("hosts", "127.0.0.1 localhost\n"), ContainerPath: "/etc/hosts"}}
	r.apply(p, step)
	c := r.exited(p, "c0")
	if c.ExitCode != 0 {
		t.Errorf("%+v", c)
	}
	out := dockertest.NewBuffer()
	if err := r.Logs(t.Context(), c.ID, &v1.PodLogOptions{}, out, nil); err != nil || out.String() != "last\n" {
		t.Errorf("environment: %q, %v", out.String(), err)
	}
	in, err := r.Inspect(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if h := in.HostConfig; h.CPUQuota != 25000 || h.Memory != 100<<20 || h.OomScoreAdj != 999 || h.LogConfig.Config["max-file"] != "3" {
		t.Errorf("host config: %+v", h)
	}
	if _, err := os.Stat(r.dir); err != nil {
		t.Error(err)
	}
}
