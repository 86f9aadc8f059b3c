package pod

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsolation(t *testing.T) {
	for _, test := range []struct {
		annotation, handler, want string
		ok                        bool
	}{
		{"", "", "", true}, {"HyperV", "", "hyperv", true}, {"process", "", "process", true}, {"odd", "", "", true},
		{"", "hyperv", "hyperv", true}, {"hyperv", "runhcs-wcow-process", "process", true}, {"", "runhcs-wcow-hypervisor", "hyperv", true},
		{"", "runsc", "", false},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{isolationAnnotation: test.annotation}}}
		if got, ok := Isolation(p, test.handler); got != test.want || ok != test.ok {
			t.Errorf("%+v: %q, %v", test, got, ok)
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
		at   Attempt
		of   string
		want string
		err  string
	}{
		{name: "runs", at: Attempt{Kind: Ephemeral, TargetID: "c0de"}, want: "c0de"},
		{name: "does not run", at: Attempt{Kind: Ephemeral}, err: "unable to find target container web"},
		{name: "none named", at: Attempt{Kind: Ephemeral}, of: "free"},
		{name: "no ephemeral one", at: Attempt{Kind: App}},
		{name: "all share", edit: func(p *v1.Pod) { p.Spec.ShareProcessNamespace = ptr(true) }, at: Attempt{Kind: Ephemeral}},
		{name: "host", edit: func(p *v1.Pod) { p.Spec.HostPID = true }, at: Attempt{Kind: Ephemeral}},
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

func TestRecursively(t *testing.T) {
	none, deep := v1.MountPropagationNone, v1.MountPropagationHostToContainer
	for _, test := range []struct {
		mode      v1.RecursiveReadOnlyMode
		writable  bool
		spread    *v1.MountPropagationMode
		supported bool
		want      bool
		err       string
	}{
		{mode: "", supported: true}, {mode: v1.RecursiveReadOnlyDisabled, supported: true},
		{mode: v1.RecursiveReadOnlyIfPossible, supported: true, want: true}, {mode: v1.RecursiveReadOnlyIfPossible},
		{mode: v1.RecursiveReadOnlyEnabled, supported: true, want: true, spread: &none},
		{mode: v1.RecursiveReadOnlyEnabled, err: "not supported by the runtime"},
		{mode: v1.RecursiveReadOnlyEnabled, supported: true, writable: true, err: "not read-only"},
		{mode: v1.RecursiveReadOnlyIfPossible, supported: true, spread: &deep, err: `not compatible with propagation "HostToContainer"`},
		{mode: "Odd", supported: true, err: `unknown recursive read-only mode "Odd"`},
	} {
		vm := &v1.VolumeMount{Name: "v", ReadOnly: !test.writable, MountPropagation: test.spread}
		if test.mode != "" {
			vm.RecursiveReadOnly = &test.mode
		}
		got, err := recursively(vm, test.supported)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
		// The status says what the mount is.
		status := mountStatuses(&v1.Container{VolumeMounts: []v1.VolumeMount{*vm}}, test.supported)[0].RecursiveReadOnly
		if test.writable != (status == nil) || status != nil && (*status == v1.RecursiveReadOnlyEnabled) != test.want {
			t.Errorf("%+v: status %v", test, status)
		}
	}
}

func TestSignalOf(t *testing.T) {
	for text, want := range map[string]v1.Signal{"": v1.SIGTERM, "SIGQUIT": v1.SIGQUIT, "quit": v1.SIGQUIT, "9": "9"} {
		if got := signalOf(text); *got != want {
			t.Errorf("%q: %s, want %s", text, *got, want)
		}
	}
}
