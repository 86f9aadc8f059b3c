package plan

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestSignalOf(t *testing.T) {
	for text, want := range map[string]v1.Signal{"": v1.SIGTERM, "SIGQUIT": v1.SIGQUIT, "quit": v1.SIGQUIT, "9": "9"} {
		if got := signalOf(text); *got != want {
			t.Errorf("%q: %s, want %s", text, *got, want)
		}
	}
}

// The status shows how each volume is mounted.
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
