package docker

import (
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

// testPrepared: containers are created while their sandbox starts. The start takes the prepared container, unless the step has changed, another
// agent prepared it, or it is gone.
func testPrepared(t *testing.T, r *rig) {
	p := r.pod("prepared", []string{"pause"}, []string{"pause"}, []string{"pause"}, []string{"pause"})
	prepare := func(step pod.Step) {
		t.Helper()
		if err := r.Prepare(t.Context(), p, step); err != nil {
			t.Fatal(err)
		}
	}
	var sandbox, early string
	r.apply(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: r.net, Hostname: p.Name}, Created: func(id string) {
		sandbox = id
		if err := r.Prepare(t.Context(), p, r.step(p, 0, id)); err != nil {
			t.Error(err)
		}
		early = r.container(p, "c0").ID
	}})
	if o := r.observed(p); len(o.Sandboxes) != 1 || o.Sandboxes[0].ID != sandbox || !o.Sandboxes[0].Running || len(o.Containers) != 1 || o.Containers[0].State != pod.Created {
		t.Fatalf("after the sandbox's start: %+v", o)
	}
	r.apply(p, r.step(p, 0, sandbox))
	if c := r.container(p, "c0"); c.ID != early || c.State != pod.Running {
		t.Errorf("%+v, want container %s", c, early)
	}

	prepare(r.step(p, 1, sandbox))
	changed, early := r.step(p, 1, sandbox), r.container(p, "c1").ID
	changed.Inputs.Env = []pod.Env{{Name: "NEW", Value: "x"}}
	r.apply(p, changed)
	if c := r.container(p, "c1"); c.ID == early || c.State != pod.Running {
		t.Errorf("another step has %+v, want another container than %s", c, early)
	}

	prepare(r.step(p, 2, sandbox))
	early = r.container(p, "c2").ID
	r.rebuild(ordinary)
	r.apply(p, r.step(p, 2, sandbox))
	if c := r.container(p, "c2"); c.ID == early || c.State != pod.Running {
		t.Errorf("the next agent has %+v, want another container than %s", c, early)
	}

	prepare(r.step(p, 3, sandbox))
	r.apply(p, pod.Step{Action: pod.RemoveContainer, ID: r.container(p, "c3").ID})
	r.apply(p, r.step(p, 3, sandbox))
	if c := r.container(p, "c3"); c.State != pod.Running {
		t.Errorf("after the prepared one was removed: %+v", c)
	}
	if o := r.observed(p); len(o.Containers) != 4 {
		t.Errorf("%d containers, want 4: %+v", len(o.Containers), o.Containers)
	}

	if err := r.Prepare(t.Context(), p, r.step(p, 3, sandbox)); err == nil {
		t.Error("a running container was prepared")
	}
	if err := r.Prepare(t.Context(), p, pod.Step{Action: pod.StopContainer}); err == nil {
		t.Error("a stop was prepared")
	}
	if c := r.container(p, "c3"); c.State != pod.Running {
		t.Errorf("after that: %+v", c)
	}
}
