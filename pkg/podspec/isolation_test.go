package podspec

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestIsolation(t *testing.T) {
	for _, test := range []struct {
		annotation, handler string
		gate                bool
		want                string
		ok                  bool
	}{
		{"", "", true, "", true}, {"HyperV", "", true, "hyperv", true}, {"process", "", true, "process", true}, {"odd", "", true, "", true},
		{"hyperv", "", false, "", true}, {"process", "", false, "", true},
		{"", "hyperv", false, "hyperv", true}, {"hyperv", "runhcs-wcow-process", true, "process", true}, {"", "runhcs-wcow-hypervisor", false, "hyperv", true},
		{"", "runsc", true, "", false},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{IsolationAnnotation: test.annotation}}}
		if got, ok := Isolation(p, test.handler, test.gate); got != test.want || ok != test.ok {
			t.Errorf("%+v: %q, %v", test, got, ok)
		}
	}
}

// TestCheckIsolation: the annotation has one of two values, and a pod with Hyper-V isolation one container at a time. A
// RuntimeClass overrides the annotation, whatever its value.
func TestCheckIsolation(t *testing.T) {
	const unknown = `the annotation experimental.windows.kubernetes.io/isolation-type is "xen": want hyperv or process`
	const two = `the annotation experimental.windows.kubernetes.io/isolation-type is "hyperv", but the pod has 2 containers that run at the same time: ` +
		`containers with Hyper-V isolation share no network, so that a pod has one; split the pod, or remove the annotation`
	always := v1.ContainerRestartPolicyAlways
	one, class := []v1.Container{{Name: "a"}}, "strong"
	for _, test := range []struct {
		annotations map[string]string
		spec        v1.PodSpec
		want        string
	}{
		{nil, v1.PodSpec{Containers: append(one, one...)}, ""},
		{map[string]string{IsolationAnnotation: "hyperv"}, v1.PodSpec{Containers: one, InitContainers: one}, ""},
		{map[string]string{IsolationAnnotation: "process"}, v1.PodSpec{Containers: append(one, one...)}, ""},
		{map[string]string{IsolationAnnotation: "hyperv"}, v1.PodSpec{Containers: append(one, one...)}, two},
		{map[string]string{IsolationAnnotation: "hyperv"}, v1.PodSpec{Containers: one, InitContainers: []v1.Container{{Name: "s", RestartPolicy: &always}}}, two},
		{map[string]string{IsolationAnnotation: "xen"}, v1.PodSpec{Containers: one}, unknown},
		{map[string]string{IsolationAnnotation: ""}, v1.PodSpec{Containers: one}, `the annotation experimental.windows.kubernetes.io/isolation-type is "": want hyperv or process`},
		{map[string]string{IsolationAnnotation: "xen"}, v1.PodSpec{Containers: one, RuntimeClassName: &class}, ""},
	} {
		got := ""
		if err := CheckIsolation(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}, Spec: test.spec}); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%v: %s\nwant %s", test.annotations, got, test.want)
		}
	}
}
