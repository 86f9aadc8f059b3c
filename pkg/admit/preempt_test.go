package admit

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

func priority(n int32) option { return func(p *v1.Pod) { p.Spec.Priority = &n } }

func class(c v1.PodQOSClass) option { return func(p *v1.Pod) { p.Status.QOSClass = c } }

const systemCritical = 2_000_000_000

// said is the result of an admission, in one line.
func said(r *pod.Rejection) string {
	switch {
	case r == nil:
		return "admitted"
	case r.Preemption == nil:
		return r.Reason + ": " + r.Message
	}
	var names []string
	for _, uid := range r.Preemption.Victims {
		names = append(names, strings.TrimPrefix(string(uid), "uid-"))
	}
	return fmt.Sprintf("waits for %v: %s", names, r.Message)
}

// TestVictims uses a full node with 2 CPUs, 4Gi of memory and room for 4 pods.
func TestVictims(t *testing.T) {
	best, burst, guaranteed := class(v1.PodQOSBestEffort), class(v1.PodQOSBurstable), class(v1.PodQOSGuaranteed)
	critical := func(pairs ...string) *v1.Pod { return newPod("p", priority(systemCritical), requests(pairs...)) }
	const noRoom = "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: " +
		"error finding a set of pods to preempt: no set of running pods found to reclaim resources: "
	for _, test := range []struct {
		name   string
		before []*v1.Pod
		pod    *v1.Pod
		want   string
	}{
		{"room enough", []*v1.Pod{newPod("a", burst, requests("cpu", "1"))}, critical("cpu", "1"), "admitted"},
		{"one", []*v1.Pod{newPod("a", burst, requests("cpu", "1900m"))}, critical("cpu", "500m"), "waits for [a]"},
		{"a static pod", []*v1.Pod{newPod("a", burst, requests("cpu", "1900m"))}, newPod("p", staticPod, requests("cpu", "500m")), "waits for [a]"},
		{"no critical pod", []*v1.Pod{newPod("a", burst, requests("cpu", "1900m"))}, newPod("p", priority(1000), requests("cpu", "500m")), "OutOfcpu: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000"},
		{"it does not fit anyway", []*v1.Pod{newPod("a", burst, requests("cpu", "1900m"))}, newPod("p", staticPod, selector("a", "b"), requests("cpu", "500m")), "NodeAffinity"},
		{"burstable before guaranteed", []*v1.Pod{newPod("a", guaranteed, requests("cpu", "1")), newPod("b", burst, requests("cpu", "1"))}, critical("cpu", "1"), "waits for [b]"},
		{"guaranteed where it must be", []*v1.Pod{newPod("a", guaranteed, requests("cpu", "1500m")), newPod("b", burst, requests("cpu", "500m"))}, critical("cpu", "1500m"), "waits for [a]"},
		{"the one that fits best", []*v1.Pod{newPod("a", burst, requests("cpu", "300m")), newPod("b", burst, requests("cpu", "1500m")), newPod("c", burst, requests("cpu", "200m"))}, critical("cpu", "1"), "waits for [b]"},
		{"of two the smaller", []*v1.Pod{newPod("a", burst, requests("cpu", "1200m")), newPod("b", burst, requests("cpu", "800m"))}, critical("cpu", "800m"), "waits for [b]"},
		{"more than one", []*v1.Pod{newPod("a", burst, requests("cpu", "1")), newPod("b", burst, requests("cpu", "1"))}, critical("cpu", "1500m"), "waits for [a b]"},
		{"two resources", []*v1.Pod{newPod("a", burst, requests("cpu", "2")), newPod("b", burst, requests("memory", "4Gi"))}, critical("cpu", "1", "memory", "1Gi"), "waits for [a b]"},
		{"a place", []*v1.Pod{newPod("a", best), newPod("b", burst, requests("cpu", "1")), newPod("c", best), newPod("d", best)}, critical(), "waits for [a]"},
		{"others are critical too", []*v1.Pod{newPod("a", burst, staticPod, requests("cpu", "2"))}, critical("cpu", "1"), noRoom + "[(res: cpu, q: 1000), ]"},
		{"of a lower priority", []*v1.Pod{newPod("a", burst, priority(systemCritical), requests("cpu", "2"))}, newPod("p", priority(systemCritical+1000), requests("cpu", "1")), "waits for [a]"},
		{"more than there is", []*v1.Pod{newPod("a", burst, requests("cpu", "1"))}, critical("cpu", "3"), noRoom + "[(res: cpu, q: 1000), ]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := New(testConfig(func(c *Config) { c.MaxPods = 4 }))
			for _, p := range test.before {
				a.Adopt(p)
			}
			if got := said(a.Admit(test.pod)); !strings.HasPrefix(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestPreemption admits two critical pods, step by step.
func TestPreemption(t *testing.T) {
	config, counted := testConfig(), ""
	config.Preempted = func(resource string, pods int) { counted += fmt.Sprintf("%d for %s,", pods, resource) }
	a := New(config)
	step := func(what, got, want string) {
		t.Helper()
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	burst := class(v1.PodQOSBurstable)
	a.Adopt(newPod("a", burst, requests("cpu", "1")))
	a.Adopt(newPod("b", burst, requests("cpu", "1")))
	first, second := newPod("p", staticPod, requests("cpu", "600m")), newPod("q", staticPod, requests("cpu", "600m"))
	step("the first", said(a.Admit(first)), "waits for [a]")
	step("the first, asked again too early", said(a.Admit(first)), "waits for []")
	step("the second takes what the first leaves and another", said(a.Admit(second)), "waits for [b]")
	a.Release("uid-a")
	step("no pod takes the room", said(a.Admit(newPod("c", requests("cpu", "100m")))), "OutOfcpu")
	step("the first, while the second waits", said(a.Admit(first)), "waits for []")
	a.Release("uid-b")
	step("the first", said(a.Admit(first)), "admitted")
	step("the second", said(a.Admit(second)), "admitted")
	if counted != "1 for cpu,1 for cpu," {
		t.Errorf("counted %q", counted)
	}
	if cpu := cpuOf(a); cpu != 1200 {
		t.Errorf("%dm are held, want 1200m", cpu)
	}
	step("a common pod", said(a.Admit(newPod("c", requests("cpu", "800m")))), "admitted")
}
