package docker

import (
	"context"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// TestExtremeSeconds: no number of seconds overflows on its way to the engine.
func TestExtremeSeconds(t *testing.T) {
	for n, want := range map[int64]int{0: 0, -1: 0, 1: 1, 9223372037: math.MaxInt32, 1 << 62: math.MaxInt32, math.MaxInt64: math.MaxInt32, math.MinInt64: 0} {
		if got := wholeSeconds(pod.Seconds(n)); got != want {
			t.Errorf("%d s: %d, want %d", n, got, want)
		}
	}
	for d, want := range map[time.Duration]int{math.MaxInt64: math.MaxInt32, math.MinInt64: 0, 1: 1, time.Second: 1, time.Second + 1: 2} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d s, want %d", d, got, want)
		}
	}
}

// TestLongGrace: a container with an endless grace period is not killed, and its stop is not given up, before it ends by itself.
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
		done <- r.Apply(context.WithoutCancel(t.Context()), p, pod.Step{Action: pod.StopContainer, ID: id, Grace: pod.Seconds(r.observed(p).Grace)})
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
