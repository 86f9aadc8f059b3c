package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
)

// scriptedProber gives every probe and hook the same result, and records the requests.
type scriptedProber struct {
	result   pod.ProbeResult
	fellBack bool
	err      error
	hooks    []string
}

func (s *scriptedProber) Probe(context.Context, v1.ProbeHandler, pod.ProbeTarget) (pod.ProbeResult, error) {
	return s.result, s.err
}

func (s *scriptedProber) Hook(_ context.Context, action *v1.HTTPGetAction, target pod.ProbeTarget) (bool, error) {
	s.hooks = append(s.hooks, fmt.Sprint(action.Path, " to ", target.PodIP, ", ports ", len(target.Ports)))
	return s.fellBack, s.err
}

// TestHTTPHook: hooks are sent to the same address as probes, and their errors name the hook.
func TestHTTPHook(t *testing.T) {
	recorder, prober := record.NewFakeRecorder(10), &scriptedProber{}
	hook := hookRun{
		pod: &v1.Pod{}, ips: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}, parts: &Parts{Events: recorder, Prober: prober},
		container: &v1.Container{Name: "c", Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80}}},
	}
	get := func() error {
		return hook.run(t.Context(), &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/p", Port: intstr.FromString("web")}})
	}
	if err := get(); err != nil || !slices.Equal(prober.hooks, []string{"/p to 10.0.0.7, ports 1"}) {
		t.Errorf("%v, asked: %q", err, prober.hooks)
	}
	prober.fellBack = true
	if err := get(); err != nil {
		t.Error(err)
	}
	if e := <-recorder.Events; e != "Warning LifecycleHTTPFallback request to HTTPS lifecycle hook 10.0.0.7:web got HTTP response, retry with HTTP succeeded" {
		t.Errorf("event: %s", e)
	}
	prober.fellBack, prober.err = false, errors.New("no answer")
	if err := get(); err == nil || !strings.Contains(err.Error(), `HTTP lifecycle hook (/p) for Container "c"`) || !strings.HasSuffix(err.Error(), "no answer") {
		t.Errorf("error: %v", err)
	}
	if len(recorder.Events) > 0 {
		t.Errorf("another event: %s", <-recorder.Events)
	}
}

// TestProbeWarning: a probe with a warning passes, and the pod gets the Event that users look for.
func TestProbeWarning(t *testing.T) {
	const detail = "Probe terminated redirects, Response body: <a href=\"http://0.0.0.0/\">Found</a>."
	for _, kind := range []probeKind{startupProbe, livenessProbe, readinessProbe} {
		recorder, prober := record.NewFakeRecorder(10), &scriptedProber{result: pod.ProbeResult{OK: true, Warning: true, Detail: detail}}
		recorder.IncludeObject = true
		p := probing{parts: &Parts{Events: recorder, Prober: prober}, key: probeKey{"id", kind}, probe: &v1.Probe{},
			pod: &v1.Pod{}, container: &v1.Container{Name: "c"}}
		if got := p.once(t.Context()); got != plan.Passed {
			t.Errorf("%s: %v, want it to pass", kind, got)
		}
		if e := <-recorder.Events; !strings.HasPrefix(e, "Warning ProbeWarning "+string(kind)+" probe warning: "+detail) {
			t.Errorf("%s: event %s", kind, e)
		}
		prober.result.Warning = false
		if got := p.once(t.Context()); got != plan.Passed || len(recorder.Events) > 0 {
			t.Errorf("%s without a warning: %v, %d events", kind, got, len(recorder.Events))
		}
	}
}

func TestSleepHookEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	hook := hookRun{pod: &v1.Pod{}, container: &v1.Container{Name: "c"}}
	if err := hook.run(ctx, &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3600}}); err == nil {
		t.Error("slept on")
	}
	if err := hook.run(ctx, &v1.LifecycleHandler{}); err == nil {
		t.Error("ran nothing")
	}
}
