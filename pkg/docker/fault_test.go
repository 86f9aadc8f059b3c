package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	v1 "k8s.io/api/core/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// TestHang: an engine that does not answer one request makes only that one fail, in time.
func TestHang(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.Clock, c.CallTimeout = clock, 150*time.Millisecond })
	p := r.pod("hang", []string{"pause"})
	id := r.run(p)[0]
	for _, test := range []struct {
		match string
		call  func(context.Context) error
	}{
		{"GET /containers/json", func(ctx context.Context) error { _, err := r.Observe(ctx, p.UID); return err }},
		{"GET /images/*/*/json", func(ctx context.Context) error { _, _, err := r.Lookup(ctx, testImage); return err }},
		{"POST /containers/*/exec", func(ctx context.Context) error { _, _, err := r.ExecSync(ctx, id, []string{"x"}, 1); return err }},
		{"POST /exec/*/start", func(ctx context.Context) error {
			_, _, err := r.ExecSync(ctx, id, []string{programPath}, 1)
			return err
		}},
		{"POST /containers/*/attach", func(ctx context.Context) error {
			return r.Attach(ctx, id, nil, dockertest.NewBuffer(), nil, false, nil)
		}},
		{"GET /containers/*/logs", func(ctx context.Context) error {
			return r.Logs(ctx, id, &v1.PodLogOptions{}, dockertest.NewBuffer(), nil)
		}},
	} {
		release, err := r.hung(test.match, clock, r.cfg.CallTimeout, test.call)
		var timeout interface{ Timeout() bool }
		if !errors.As(err, &timeout) || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), "did not answer within 150ms") {
			t.Errorf("%s hangs: %v", test.match, err)
		}
		if _, err := r.Info(t.Context()); err != nil {
			t.Errorf("%s hangs, and so does another call: %v", test.match, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := test.call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s hangs, and the caller's context ended: %v", test.match, err)
		}
		release()
		if test.match[:3] == "GET" {
			if err := test.call(t.Context()); err != nil {
				t.Errorf("%s answers again: %v", test.match, err)
			}
		}
	}
	// A stop that hangs ends in a kill.
	release, err := r.hung("POST /containers/*/stop", clock, time.Second+r.cfg.StopSlack, func(ctx context.Context) error {
		return r.Apply(ctx, p, pod.Step{Action: pod.StopContainer, ID: id, Grace: time.Millisecond})
	})
	defer release()
	if err != nil {
		t.Fatal(err)
	}
	if c := r.container(p, "c0"); c.State != pod.Exited || c.ExitCode != 137 {
		t.Errorf("%+v", c)
	}
}

// TestOOMScore: if the host refuses scores below 0, containers start with 0, after one warning and one failed attempt.
func TestOOMScore(t *testing.T) {
	r := fakeRig(t, dockertest.Options{NoSysResource: true}, nil)
	p := r.pod("oom", []string{"pause"})
	sandbox := r.sandbox(p)
	step := r.step(p, 0, sandbox)
	step.Inputs.OOMScoreAdj = -997
	r.fake.Requests(true)
	r.apply(p, step)
	starts := slices.DeleteFunc(r.fake.Requests(false), func(s string) bool { return !strings.HasSuffix(s, "/start") })
	if len(starts) != 1 {
		t.Errorf("the sandbox's start has taught it: %q", starts)
	}
	in, err := r.Inspect(t.Context(), r.container(p, "c0").ID)
	if err != nil || in.HostConfig.OomScoreAdj != 0 {
		t.Errorf("%+v, %v", in.HostConfig, err)
	}
	// The same message with another cause proves nothing.
	r = fakeRig(t, dockertest.Options{}, nil)
	r.fake.Fail("POST /containers/*/start", 2, http.StatusInternalServerError, "can't get final child's PID from pipe: EOF")
	if err := r.Apply(t.Context(), p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net}}); err == nil {
		t.Error("no error")
	}
	if target, err := r.Target(t.Context()); err != nil || target.MinOOMScoreAdj != convert.MinOOMScoreAdj {
		t.Errorf("learnt from a start that failed either way: %d, %v", target.MinOOMScoreAdj, err)
	}
}

// TestObserveCost: with the event stream up, observing a pod costs a request for each of its changed containers, and observing all pods one list
// more.
func TestObserveCost(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	changes := r.Changes(t.Context())
	<-changes
	r.await("the events of images", func() bool { // a separate stream, with its own request
		streams := slices.DeleteFunc(r.fake.Requests(false), func(request string) bool { return request != "GET /events" })
		return len(streams) == 2
	})
	var p *v1.Pod
	for i := range 5 {
		p = r.pod(fmt.Sprintf("p%d", i), []string{"pause"}, []string{"exit", "1"})
		r.run(p)
		for r.container(p, "c1").State != pod.Exited {
			<-changes
		}
	}
	last := r.pod("last", []string{"pause"})
	r.run(last)
	for <-changes != last.UID { // waits until earlier events have been processed
	}
	settle := func() {
		for {
			if _, err := r.ObserveAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.fake.Requests(true)
			if _, err := r.ObserveAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(r.fake.Requests(false)) == 1 {
				return
			}
		}
	}
	settle()
	id := r.container(p, "c0").ID
	r.fake.Requests(true)
	r.observed(p)
	if requests := r.fake.Requests(true); len(requests) != 0 {
		t.Errorf("nothing changed: %q", requests)
	}
	r.fake.Kill(id, 3, true)
	for r.container(p, "c0").State != pod.Exited {
		<-changes
	}
	if c := r.container(p, "c0"); c.ExitCode != 3 || !c.OOMKilled {
		t.Errorf("%+v", c)
	}
	requests := r.fake.Requests(true) // at most one for each of its two events
	if others := slices.DeleteFunc(slices.Clone(requests), func(s string) bool { return s == "GET /containers/"+id+"/json" }); len(requests) == 0 || len(requests) > 2 || len(others) > 0 {
		t.Errorf("one container changed: %q", requests)
	}
}

// TestExisting: which containers exist costs no request while all are known to, and one list if one may be gone.
func TestExisting(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	<-r.Changes(t.Context())
	ids := r.run(r.pod("web", []string{"pause"}, []string{"pause"}))
	foreign := r.stranger("foreign", nil, true)
	for _, step := range []struct {
		ask      []string
		want     int // ids of the pod among the answers
		requests []string
	}{
		{ids, 2, nil},
		{append([]string{foreign}, ids...), 2, []string{"GET /containers/json"}},
		{append([]string{strings.Repeat("0", 64)}, ids...), 2, []string{"GET /containers/json"}},
	} {
		r.fake.Requests(true)
		existing, err := r.Existing(t.Context(), step.ask)
		if err != nil {
			t.Fatal(err)
		}
		if existing[foreign] || existing[strings.Repeat("0", 64)] || !existing[ids[0]] || !existing[ids[1]] {
			t.Errorf("%d ids: %v", len(step.ask), existing)
		}
		if got := r.fake.Requests(true); !slices.Equal(got, step.requests) {
			t.Errorf("%d ids: %q; want %q", len(step.ask), got, step.requests)
		}
	}
	r.fake.Fail("GET /containers/json", 1, http.StatusInternalServerError, "broken")
	if existing, err := r.Existing(t.Context(), []string{foreign}); err == nil || existing != nil {
		t.Errorf("an engine that cannot list: %v, %v", existing, err)
	}
}

// TestReconnect: after a gap "" is delivered, known containers are inspected again, and another engine version causes no problem.
func TestReconnect(t *testing.T) {
	r := fakeRig(t, dockertest.Options{LiveRestore: true}, nil)
	p := r.pod("gap", []string{"pause"})
	id := r.run(p)[0]
	changes := r.Changes(t.Context())
	if uid := <-changes; uid != "" {
		t.Errorf("first: %q", uid)
	}
	r.observed(p)
	r.fake.Fail("GET /events", 2, http.StatusInternalServerError, "starting")
	r.fake.Upgrade("29.1.0", "1.52", "1.44")
	r.fake.Restart()
	r.fake.Kill(id, 9, false)
	for uid := range changes { // its start may be reported first
		if uid == "" {
			break
		}
	}
	if c := r.container(p, "c0"); c.State != pod.Exited || c.ExitCode != 9 {
		t.Errorf("%+v", c)
	}
	for _, to := range [][3]string{{"20.10.24", "1.41", "1.12"}, {"29.1.0", "1.52", "1.44"}} {
		r.fake.Upgrade(to[0], to[1], to[2]) // without a restart that the agent could notice
		if _, err := r.Observe(t.Context(), p.UID); err != nil {
			t.Errorf("after a change to %s: %v", to[0], err)
		}
	}
}

// TestTooNew: an engine that refuses every API version of this client gets an explanation, each time.
func TestTooNew(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	r.fake.Upgrade("31.0.0", "1.64", "1.60")
	if _, err := r.Observe(t.Context(), "uid"); err == nil { // still at the former version
		t.Error("a version that the engine refuses: no error")
	}
	for range 2 {
		_, err := r.Observe(t.Context(), "uid")
		if want := "this Docker is too new: it accepts no API version before 1.60, and this kubelet supports 1.24 to 1.51; install an older Docker or a newer kubelet"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestUnreachable: a missing engine is an error of each call, never "nothing runs".
func TestUnreachable(t *testing.T) {
	e, err := New(Config{Host: deadEnd(t), Platform: linux})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := e.Containers.ObserveAll(t.Context()); err == nil || all != nil || !strings.HasPrefix(err.Error(), "cannot list containers: ") {
		t.Errorf("%v, %v", all, err)
	}
	if _, found, err := e.Images.Lookup(t.Context(), "x"); err == nil || found {
		t.Errorf("found %v, %v", found, err)
	}
	for _, host := range []string{"nonsense", "unix://", "unix://" + strings.Repeat("x", 300)} {
		if _, err := New(Config{Host: host}); err == nil || !strings.Contains(err.Error(), "unix:///path") {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

// TestOldCapabilities: engines before 19.03 expect capabilities without CAP_, which today's client does not send.
func TestOldCapabilities(t *testing.T) {
	r := fakeRig(t, dockertest.Options{Version: "17.06.2", APIVersion: "1.30"}, nil)
	p := r.pod("caps", []string{"pause"})
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}}}
	step := r.step(p, 0, r.sandbox(p))
	r.apply(p, step)
	r.apply(p, step) // the conflict is recognized
	step.Attempt, step.Inputs.Image.ID = 1, "sha256:0000"
	if err := r.Apply(t.Context(), p, step); !cerrdefs.IsNotFound(err) {
		t.Errorf("no such image: %v", err)
	}
}

// TestWindows: a host without shared networks has no sandbox; the container has the pod's network.
func TestWindows(t *testing.T) {
	r := fakeRig(t, dockertest.Options{OS: "windows", Build: 14393, APIVersion: "1.30", CPUs: 2}, nil)
	p := r.pod("alone", []string{"pause"})
	p.Spec.Containers[0].Resources = resources("8", "64Mi")
	id := r.run(p)[0]
	o := r.observed(p)
	if len(o.Sandboxes) != 0 || len(o.Containers) != 1 || len(o.Containers[0].Addresses) != 1 || o.Containers[0].SandboxID != "" {
		t.Errorf("%+v", o)
	}
	in, err := r.Inspect(t.Context(), id)
	if err != nil || in.HostConfig.NanoCPUs != 2e9 {
		t.Errorf("limit above the host's processors: %+v, %v", in.HostConfig, err)
	}
	if info, err := r.Info(t.Context()); err != nil || info.OS != "windows" || info.Isolation != "process" || info.CgroupDriver != "" {
		t.Errorf("%+v, %v", info, err)
	}
	var apply *engine.ApplyError
	step := r.step(p, 0, id)
	step.Attempt = 1
	if err := r.Apply(t.Context(), p, step); !errors.As(err, &apply) || apply.Reason != engine.ReasonCreate {
		t.Errorf("a shared network: %v", err)
	}
	step = r.step(p, 0, "")
	step.Attempt, step.Inputs.Mounts = 2, []pod.Mount{{Name: "file", HostPath: `C:\k\hosts`, ContainerPath: `C:\hosts`}}
	if err := r.Apply(t.Context(), p, step); err != nil {
		t.Errorf("a directory: %v", err)
	}
	r = fakeRig(t, dockertest.Options{OS: "windows", Build: 17763, IsFile: func(path string) bool { return path == `C:\k\hosts` }}, nil)
	r.run(p)
	step.Inputs.Sandbox, step.Inputs.SandboxID, step.Inputs.Image = nil, r.observed(p).Sandboxes[0].ID, r.image
	if err := r.Apply(t.Context(), p, step); !errors.As(err, &apply) || !strings.Contains(apply.Message, "source path must be a directory") {
		t.Errorf("a file: %v", err)
	}
}

func TestInfraImagePulled(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.InfraImage = "registry.test/pause:1" })
	p := r.pod("infra", []string{"pause"})
	create := pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net}}
	var apply *engine.ApplyError
	if err := r.Apply(t.Context(), p, create); !errors.As(err, &apply) || apply.Reason != engine.ReasonSandbox || !strings.Contains(apply.Message, "pull access denied") {
		t.Errorf("not to be had: %v", err)
	}
	r.fake.AddRemote("registry.test/pause:1", dockertest.Remote{Image: dockertest.Image{Entrypoint: []string{programPath}}})
	r.apply(p, create)
	if want := "container k8s_POD_infra_ns_uid-infra_0 running net=winkube-test ip=10.231.7.2\n"; !strings.HasSuffix(r.fake.Dump(), want) {
		t.Errorf("dump:\n%swant:\n%s", r.fake.Dump(), want)
	}
}

func TestResize(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	id := r.run(r.pod("tty", []string{"pause"}))[0]
	sizes := make(chan remotecommand.TerminalSize, 2)
	sizes <- remotecommand.TerminalSize{Width: 80, Height: 24}
	sizes <- remotecommand.TerminalSize{}
	out := dockertest.NewBuffer()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Exec(ctx, id, []string{programPath, "sizes"}, nil, out, nil, true, sizes) }()
	out.Await(t, "80x24\n")
	close(sizes)
	cancel()
	<-done
}

// TestNoLeak: sessions whose client or container disappears leave no goroutine behind.
func TestNoLeak(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("leak", []string{"pause"})
	id := r.run(p)[0]
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		in, type_ := io.Pipe()
		out := dockertest.NewBuffer()
		done := make(chan error)
		go func() { done <- r.Exec(ctx, id, []string{programPath, "cat"}, in, out, nil, true, nil) }()
		_, _ = io.WriteString(type_, "x\n")
		out.Await(t, "x")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		type_.Close()
		if err := r.Exec(t.Context(), id, []string{programPath, "flood", "1000"}, nil, refusing{}, nil, false, nil); err == nil {
			t.Error("an output that cannot be written: no error")
		}
	}
	deadline := time.After(time.Minute)
	for runtime.NumGoroutine() > before+8 { // idle connections
		select {
		case <-deadline:
			buf := make([]byte, 1<<18)
			t.Fatalf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		default:
			runtime.Gosched()
		}
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (refusing) Close() error              { return nil }

// TestRealExecKilled: a command does not survive its probe's timeout.
func TestRealExecKilled(t *testing.T) {
	r := realRig(t, nil)
	id := r.run(r.pod("killed", []string{"pause"}))[0]
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // longer than the engine takes to start a command on a slow machine
	defer cancel()
	if _, _, err := r.ExecSync(ctx, id, []string{programPath, "stubborn"}, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		var left []string
		found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range found {
			if data, err := os.ReadFile(file); err == nil && bytes.HasPrefix(data, []byte(programPath+"\x00stubborn")) {
				left = append(left, file)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %q", left)
		}
	}
}

// TestRealDial: a server on the loopback address inside the pod is reachable.
func TestRealDial(t *testing.T) {
	r := realRig(t, nil)
	p := r.pod("dial", []string{"serve", "8080"})
	id := r.run(p)[0]
	out := dockertest.NewBuffer()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = r.Logs(ctx, id, &v1.PodLogOptions{Follow: true}, out, nil) }()
	out.Await(t, "serving")
	for _, target := range []string{id, r.observed(p).Sandboxes[0].ID} {
		conn, err := r.Dial(t.Context(), target, nil, 8080)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || string(data) != "hello" {
			t.Errorf("%q, %v", data, err)
		}
	}
	if _, err := r.Dial(t.Context(), id, nil, 8081); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port without a listener: %v", err)
	}
}

// TestRealFigures prints the duration of the steps of one pod.
func TestRealFigures(t *testing.T) {
	r := realRig(t, nil)
	const rounds = 10
	took := map[string][]time.Duration{}
	measure := func(what string, do func()) {
		start := time.Now()
		do()
		took[what] = append(took[what], time.Since(start))
	}
	<-r.Changes(t.Context())
	r.sandbox(r.pod("warm-up", []string{"pause"}))
	for i := range rounds {
		p := r.pod("figure"+strconv.Itoa(i), []string{"pause"})
		create := pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: "x"}}
		measure("1 sandbox create+start", func() { r.apply(p, create) })
		step := r.step(p, 0, r.observed(p).Sandboxes[0].ID)
		measure("2 container create+start", func() { r.apply(p, step) })
		measure("3 observe, one changed", func() { r.observed(p) })
		measure("4 observe, none changed", func() { r.observed(p) })
		measure("5 observe all, none changed", func() { _, _ = r.ObserveAll(t.Context()) })
		id := r.container(p, "c0").ID
		measure("6 exec", func() { _, _, _ = r.ExecSync(t.Context(), id, []string{programPath, "exit", "0"}, 10) })
		measure("7 stop container", func() { r.apply(p, pod.Step{Action: pod.StopContainer, ID: id, Grace: 5 * time.Second}) })
		measure("8 remove container", func() { r.apply(p, pod.Step{Action: pod.RemoveContainer, ID: id}) })
	}
	for _, what := range slices.Sorted(maps.Keys(took)) {
		slices.Sort(took[what])
		t.Logf("%-30s p50 %v, max %v", what, took[what][rounds/2].Truncate(10*time.Microsecond), took[what][rounds-1].Truncate(10*time.Microsecond))
	}
}
