package docker

import (
	"context"
	"strconv"
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
