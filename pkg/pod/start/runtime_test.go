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

// TestIsolationIgnored: a pod is told, once for each sandbox, that its annotation has no effect on Windows without the feature gate.
func TestIsolationIgnored(t *testing.T) {
	const told = `Warning IsolationIgnored pod: The annotation experimental.windows.kubernetes.io/isolation-type "hyperv" has no effect: ` +
		`start the kubelet with --feature-gates=HyperVContainer=true, or give the pod a RuntimeClass with handler hyperv or process`
	annotated := func(p *v1.Pod) { p.Annotations = map[string]string{podspec.IsolationAnnotation: "hyperv"} }
	for name, c := range map[string]struct {
		pod    *v1.Pod
		system string
		gate   bool
		want   string
	}{
		"no gate":       {stagePod(annotated), "windows", false, told},
		"gate":          {stagePod(annotated), "windows", true, ""},
		"RuntimeClass":  {stagePod(annotated, class("strong")), "windows", false, ""},
		"Linux":         {stagePod(annotated), "linux", false, ""},
		"no annotation": {stagePod(), "windows", false, ""},
	} {
		s := newStage(t)
		s.cfg.Platform.OS, s.cfg.Platform.HyperVContainer, s.classes = c.system, c.gate, map[string]string{"strong": "hyperv"}
		if _, err := s.resolver().Sandbox(t.Context(), c.pod); err != nil || s.told() != c.want {
			t.Errorf("%s: %v, told %q, want %q", name, err, s.told(), c.want)
		}
	}
}

// TestIsolatedImage: an image of an older build runs where the annotation gives the container a virtual machine.
func TestIsolatedImage(t *testing.T) {
	for _, gate := range []bool{false, true} {
		s, p := newStage(t), stagePod(func(p *v1.Pod) { p.Annotations = map[string]string{podspec.IsolationAnnotation: "hyperv"} })
		s.present["app:1"] = pod.Image{ID: "sha256:1", OS: "windows", OSVersion: "10.0.14393.1"}
		s.cfg.Platform = pod.Platform{OS: "windows", Build: 17763, SharedNetwork: true, HyperVContainer: gate}
		_, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1)
		if refused := err != nil && strings.Contains(err.Error(), "give the pod a RuntimeClass with handler hyperv"); refused == gate {
			t.Errorf("gate %t: %v", gate, err)
		}
	}
}
