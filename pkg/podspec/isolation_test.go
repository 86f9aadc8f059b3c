package podspec

import (
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
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{IsolationAnnotation: test.annotation}}}
		if got, ok := Isolation(p, test.handler); got != test.want || ok != test.ok {
			t.Errorf("%+v: %q, %v", test, got, ok)
		}
	}
}
