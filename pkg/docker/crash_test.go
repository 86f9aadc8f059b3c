package docker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/exec"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// TestLeftoverStartsMeanwhile: an agent died while the engine was starting a container for it. The next one treats it as a leftover that
// was never started; it must notice that it runs and leave it alone.
func TestLeftoverStartsMeanwhile(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("late", []string{"pause"})
	step := r.step(p, 0, r.sandbox(p))
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
	release := r.fake.Hang("DELETE /containers/" + id)
	applied := make(chan error, 1)
	go func() { applied <- r.Apply(t.Context(), p, step) }()
	r.await("the leftover's removal", func() bool { return slices.Contains(r.fake.Requests(false), "DELETE /containers/"+id) })
	r.start(id)
	release()
	if err := <-applied; err != nil {
		t.Error(err)
	}
	if o := r.observed(p); len(o.Containers) != 1 || o.Containers[0].ID != id || o.Containers[0].State != pod.Running {
		t.Errorf("want the container that was started, have %+v", o.Containers)
	}
	if err := r.Apply(t.Context(), p, pod.Step{Action: pod.RemoveContainer, ID: id}); err == nil {
		t.Error("a container that runs was removed")
	}
}

// TestSandboxStartsMeanwhile is the same for a sandbox: the resulting plan must use the started sandbox, not create another.
func TestSandboxStartsMeanwhile(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("late", []string{"pause"})
	target, err := r.Target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step := pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}}
	creation, err := convert.Sandbox(p, step, r.cfg.InfraImage, target)
	if err != nil {
		t.Fatal(err)
	}
	id, err := r.Create(t.Context(), "create", creation.Name, creation.Config, creation.HostConfig)
	if err != nil {
		t.Fatal(err)
	}
	left := r.observed(p)
	if len(left.Sandboxes) != 1 || !left.Sandboxes[0].Unstarted {
		t.Fatalf("want a sandbox that was never started, have %+v", left.Sandboxes)
	}
	decision := plan.Plan(p, plan.Seen{Node: plan.Node{Platform: pod.Platform{OS: "linux", SharedNetwork: true}}, Engine: left}, time.Now())
	if len(decision.Steps) != 1 || decision.Steps[0].Verb() != string(pod.CreateSandbox) || decision.Steps[0].Of().Attempt != 0 {
		t.Fatalf("planned:\n%s", decision)
	}
	release := r.fake.Hang("DELETE /containers/" + id)
	applied := make(chan error, 1)
	go func() { applied <- r.Apply(t.Context(), p, step) }()
	r.await("the leftover's removal", func() bool { return slices.Contains(r.fake.Requests(false), "DELETE /containers/"+id) })
	r.start(id)
	release()
	if err := <-applied; err != nil {
		t.Error(err)
	}
	if o := r.observed(p); len(o.Sandboxes) != 1 || o.Sandboxes[0].ID != id || !o.Sandboxes[0].Running {
		t.Errorf("want the sandbox that was started, have %+v", o.Sandboxes)
	}
}

// TestCommandsOfDeadAgents: an agent died while commands ran. The next one kills those of probes and hooks, but not those of users.
func TestCommandsOfDeadAgents(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("commands", []string{"pause"})
	id := r.run(p)[0]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _, _ = r.ExecSync(ctx, id, []string{programPath, "pause"}, 10) }()
	go func() {
		_ = r.Exec(ctx, id, []string{programPath, "pause"}, nil, dockertest.NewBuffer(), nil, false, nil)
	}()
	r.await("both commands", func() bool {
		answer, err := r.Inspect(t.Context(), id)
		return err == nil && len(answer.ExecIDs) == 2
	})

	killed := make(chan string, 3)
	next, err := build(r.cfg, seams{inspections: 8, kill: func(_ int, container string) { killed <- container }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // only the first observation is for former agents
		if _, err := next.Containers.ObserveAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-killed; got != id {
		t.Errorf("a command of container %s was ended, want one of %s", got, id)
	}
	next.Exec.EndCommands(t.Context(), map[string]string{"nonsense": id}, make(chan bool, 1))
	select {
	case <-killed:
		t.Error("more than the probe's command was ended")
	default:
	}
}

// TestSilentEngineIsNoTimeout: a probe's command that takes too long differs from an engine that does not answer.
func TestSilentEngineIsNoTimeout(t *testing.T) {
	for _, where := range []string{"POST /containers/*/exec", "POST /exec/*/start", "GET /exec/*/json"} {
		t.Run(where, func(t *testing.T) {
			r := fakeRig(t, dockertest.Options{}, nil)
			id := r.run(r.pod("silent", []string{"pause"}))[0]
			defer r.fake.Hang(where)()
			if where != "GET /exec/*/json" {
				defer r.fake.Hang("GET /exec/*/json")()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _, err := r.ExecSync(ctx, id, []string{programPath, "pause"}, 10)
			if !errors.Is(err, exec.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want %v", err, exec.ErrNoAnswer)
			}
		})
	}
}

// await polls until ok.
func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestStuckContainer: the engine does not answer for one container. Other pods do not wait for it, even with a new agent.
func TestStuckContainer(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.Clock = clock })
	r.rebuild(seams{inspections: 1}) // so that no other request is pending when the time has passed
	stuck, well := r.pod("stuck", []string{"pause"}), r.pod("well", []string{"pause"})
	id := r.run(stuck)[0]
	r.run(well)
	hangs := "GET /containers/" + id + "/json"
	var all map[types.UID]pod.Observed
	release, err := r.hung(hangs, clock, 10*time.Second, func(ctx context.Context) (err error) { all, err = r.ObserveAll(ctx); return err })
	defer release()
	if err != nil {
		t.Fatal(err)
	}
	if o := all[well.UID]; o.Unclear || len(o.Containers) != 1 || o.Containers[0].State != pod.Running {
		t.Errorf("the pod beside it: %+v", o)
	}
	o := all[stuck.UID]
	if !o.Unclear || o.Name != "stuck" || len(o.Sandboxes) != 1 || len(o.Containers) != 1 {
		t.Fatalf("the stuck one: %+v", o)
	}
	if c := o.Containers[0]; c.ID != id || c.Name != "c0" || c.State != pod.Running || c.SandboxID != o.Sandboxes[0].ID {
		t.Errorf("its container: %+v", c)
	}
	again, err := r.hung(hangs, clock, r.cfg.CallTimeout, func(ctx context.Context) error { _, err := r.Observe(ctx, stuck.UID); return err })
	defer again()
	if err == nil {
		t.Error("the stuck pod by itself: no error")
	}
}

// TestObserveBesideTheFirstList: an agent has listed all containers and still inspects them. A pod that is observed meanwhile is seen whole: one whose
// container is missing would be started again.
func TestObserveBesideTheFirstList(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	pods := []*v1.Pod{r.pod("first", []string{"pause"}), r.pod("second", []string{"pause"}), r.pod("third", []string{"pause"})}
	ids := map[types.UID]string{}
	for _, p := range pods {
		ids[p.UID] = r.run(p)[0]
	}
	r.rebuild(seams{inspections: 1})
	changes := r.Changes(t.Context())
	<-changes // the event stream has begun
	r.fake.Requests(true)
	hangs := "GET /containers/" + ids[pods[1].UID] + "/json"
	release := r.fake.Hang(hangs)
	done := make(chan error, 1)
	go func() { _, err := r.ObserveAll(t.Context()); done <- err }()
	r.requested(hangs)
	for _, p := range []*v1.Pod{pods[0], pods[2]} {
		o := r.observed(p)
		if len(o.Sandboxes) != 1 || len(o.Containers) != 1 || o.Containers[0].ID != ids[p.UID] || o.Containers[0].State != pod.Running {
			t.Errorf("pod %s beside the list: %+v, want its sandbox and container %s", p.Name, o, ids[p.UID])
		}
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestCommandStartsLate: the engine starts a probe's command only after the probe's timeout. Until that has ended, the probe gets no other one.
func TestCommandStartsLate(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	id := r.run(r.pod("late", []string{"pause"}))[0]
	killed := make(chan string, 1)
	r.rebuild(seams{inspections: 8, kill: func(_ int, container string) { killed <- container }})
	ctx := newDeadline(t)
	release := r.fake.Hang("POST /exec/*/start")
	defer release()
	done := make(chan error, 1)
	go func() {
		_, _, err := r.ExecSync(ctx, id, []string{programPath, "pause"}, 10)
		done <- err
	}()
	r.requested("POST /exec/*/start")
	close(ctx.over)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the engine answers: %v", err)
	}
	created := func() (n int) {
		for _, request := range r.fake.Requests(false) {
			if strings.HasPrefix(request, "POST /containers/") && strings.HasSuffix(request, "/exec") {
				n++
			}
		}
		return n
	}
	again := func() error {
		over := newDeadline(t)
		close(over.over)
		_, _, err := r.ExecSync(over, id, []string{programPath, "pause"}, 10)
		return err
	}
	for range 3 {
		if err := again(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the next one: %v", err)
		}
	}
	silent := r.fake.Hang("GET /exec/*/json")
	if err := again(); !errors.Is(err, exec.ErrNoAnswer) {
		t.Errorf("the next one, and the engine is silent: %v", err)
	}
	silent()
	if n := created(); n != 1 {
		t.Errorf("the engine was asked for %d commands, want 1", n)
	}
	release()
	var command string
	for _, request := range r.fake.Requests(false) {
		if start, ok := strings.CutSuffix(request, "/start"); ok && strings.Contains(request, "/exec/") {
			command = strings.TrimPrefix(start, "POST /exec/")
		}
	}
	c, err := r.API(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The engine's pending start; it may already be done.
	_ = c.ContainerExecStart(t.Context(), command, container.ExecStartOptions{Detach: true})
	if got := <-killed; got != id {
		t.Errorf("a command of %s was ended, want one of %s", got, id)
	}
	next, end := context.WithCancel(t.Context())
	defer end()
	go func() { _, _, _ = r.ExecSync(next, id, []string{programPath, "pause"}, 10) }()
	r.await("the next command", func() bool { return created() == 2 })
}

// TestEarlierBoot: a container shows whether it was created before the host's last boot, if its agent and this one knew the boot.
func TestEarlierBoot(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, func(c *Config) { c.Boot = "7" })
	known, unknown := r.pod("known", []string{"pause"}), r.pod("unknown", []string{"pause"})
	r.run(known)
	r.cfg.Boot = ""
	r.rebuild(ordinary)
	r.run(unknown)
	for boot, want := range map[string]bool{"7": false, "8": true, "": false} {
		cfg := r.cfg
		cfg.Boot = boot
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for p, want := range map[*v1.Pod]bool{known: want, unknown: false} {
			if o, err := e.Containers.Observe(t.Context(), p.UID); err != nil || len(o.Containers) != 1 || o.Containers[0].EarlierBoot != want {
				t.Errorf("during boot %q, pod %s: %+v, %v; want EarlierBoot %t", boot, p.Name, o.Containers, err, want)
			}
		}
	}
}
