package pod

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

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
		{name: "runs", at: Attempt{Kind: podspec.Ephemeral, TargetID: "c0de"}, want: "c0de"},
		{name: "does not run", at: Attempt{Kind: podspec.Ephemeral}, err: "unable to find target container web"},
		{name: "none named", at: Attempt{Kind: podspec.Ephemeral}, of: "free"},
		{name: "no ephemeral one", at: Attempt{Kind: podspec.App}},
		{name: "all share", edit: func(p *v1.Pod) { p.Spec.ShareProcessNamespace = ptr(true) }, at: Attempt{Kind: podspec.Ephemeral}},
		{name: "host", edit: func(p *v1.Pod) { p.Spec.HostPID = true }, at: Attempt{Kind: podspec.Ephemeral}},
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

func TestSignalOf(t *testing.T) {
	for text, want := range map[string]v1.Signal{"": v1.SIGTERM, "SIGQUIT": v1.SIGQUIT, "quit": v1.SIGQUIT, "9": "9"} {
		if got := signalOf(text); *got != want {
			t.Errorf("%q: %s, want %s", text, *got, want)
		}
	}
}

// The status says of a mount what it is.
func TestMountStatuses(t *testing.T) {
	for _, test := range []struct {
		mode      v1.RecursiveReadOnlyMode
		readOnly  bool
		supported bool
		want      string
	}{
		{mode: v1.RecursiveReadOnlyEnabled, want: "-"},
		{readOnly: true, supported: true, want: "Disabled"},
		{mode: v1.RecursiveReadOnlyIfPossible, readOnly: true, want: "Disabled"},
		{mode: v1.RecursiveReadOnlyIfPossible, readOnly: true, supported: true, want: "Enabled"},
		{mode: v1.RecursiveReadOnlyEnabled, readOnly: true, want: "Disabled"},
	} {
		vm := v1.VolumeMount{Name: "v", ReadOnly: test.readOnly}
		if test.mode != "" {
			vm.RecursiveReadOnly = &test.mode
		}
		got := "-"
		if said := mountStatuses(&v1.Container{VolumeMounts: []v1.VolumeMount{vm}}, test.supported)[0].RecursiveReadOnly; said != nil {
			got = string(*said)
		}
		if got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
