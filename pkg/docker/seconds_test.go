package docker

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// TestLongGrace: a container with an endless grace period is not killed, and its stop does not time out, before it exits by itself.
func TestLongGrace(t *testing.T) {
	r := fakeRig(t, dockertest.Options{}, nil)
	p := r.pod("long", []string{"stubborn"})
	grace := int64(9223372037)
	p.Spec.TerminationGracePeriodSeconds = &grace
	id := r.run(p)[0]
	in, err := r.Inspect(t.Context(), id)
	if err != nil || in.Config.Labels[identity.LabelGrace] != strconv.FormatInt(grace, 10) {
		t.Fatal(in.Config.Labels, err)
	}
	done := make(chan error, 1)
	go func() {
		done <- r.Apply(context.WithoutCancel(t.Context()), p, pod.Step{Action: pod.StopContainer, ID: id, Grace: podspec.Seconds(r.observed(p).Grace)})
	}()
	r.requested("POST /containers/*/stop")
	if c := r.container(p, "c0"); c.State != pod.Running {
		t.Errorf("killed: %+v", c)
	}
	r.fake.Kill(id, 0, false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, request := range r.fake.Requests(false) {
		if request == "POST /containers/"+id+"/kill" {
			t.Error("the agent asked for its end")
		}
	}
}

// TestStopSandbox: on Linux one signal ends a running sandbox. One that has ended or is gone is no error.
func TestStopSandbox(t *testing.T) {
	for _, test := range []struct{ os, state, want string }{
		{"linux", "running", "kill"}, {"linux", "exited", "kill stop"}, {"linux", "gone", "kill stop"}, {"windows", "running", "stop"},
	} {
		r := fakeRig(t, dockertest.Options{OS: test.os, Build: 17763}, nil)
		p := r.pod("stop", []string{"stubborn"})
		id := r.sandbox(p)
		if test.state != "running" {
			r.fake.Kill(id, 0, false)
		}
		if test.state == "gone" {
			r.apply(p, pod.Step{Action: pod.RemoveSandbox, ID: id})
		}
		r.fake.Requests(true)
		r.apply(p, pod.Step{Action: pod.StopSandbox, ID: id})
		var got []string
		for _, request := range r.fake.Requests(false) {
			if verb, ok := strings.CutPrefix(request, "POST /containers/"+id+"/"); ok {
				got = append(got, verb)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s, %s: requests %q, want %s", test.os, test.state, got, test.want)
		}
		if in, err := r.Inspect(t.Context(), id); test.state != "gone" && (err != nil || in.State.Running) {
			t.Errorf("%s, %s: %v, %+v", test.os, test.state, err, in.State)
		}
	}
}
