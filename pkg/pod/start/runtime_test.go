package start

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

func TestIsHyperV(t *testing.T) {
	yes, no := func() bool { return true }, func() bool { return false }
	for _, c := range []struct {
		isolation string
		byDefault func() bool
		want      bool
	}{{"hyperv", no, true}, {"process", yes, false}, {"", yes, true}, {"", no, false}, {"", nil, false}} {
		if got := isHyperV(c.isolation, c.byDefault); got != c.want {
			t.Errorf("%q: %v, want %v", c.isolation, got, c.want)
		}
	}
}

func TestTarget(t *testing.T) {
	p := &v1.Pod{}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}, TargetContainerName: "web"},
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "free"}},
	}
	debug := &v1.Container{Name: "debug"}
	for _, test := range []struct {
		name string
		edit func(*v1.Pod)
		at   pod.Attempt
		of   string
		want string
		err  string
	}{
		{name: "runs", at: pod.Attempt{Kind: podspec.Ephemeral, TargetID: "c0de"}, want: "c0de"},
		{name: "does not run", at: pod.Attempt{Kind: podspec.Ephemeral}, err: "unable to find target container web"},
		{name: "none named", at: pod.Attempt{Kind: podspec.Ephemeral}, of: "free"},
		{name: "no ephemeral one", at: pod.Attempt{Kind: podspec.App}},
		{name: "all share", edit: func(p *v1.Pod) { p.Spec.ShareProcessNamespace = ptr(true) }, at: pod.Attempt{Kind: podspec.Ephemeral}},
		{name: "host", edit: func(p *v1.Pod) { p.Spec.HostPID = true }, at: pod.Attempt{Kind: podspec.Ephemeral}},
	} {
		pod, c := p.DeepCopy(), debug.DeepCopy()
		if test.edit != nil {
			test.edit(pod)
		}
		if test.of != "" {
			c.Name = test.of
		}
		got, err := target(pod, c, test.at)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
			t.Errorf("%s: %q, %v", test.name, got, err)
		}
	}
}
