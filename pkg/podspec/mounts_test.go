package podspec

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

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
		got, err := RecursivelyReadOnly(vm, test.supported)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
	}
}
