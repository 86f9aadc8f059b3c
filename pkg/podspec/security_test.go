package podspec

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestWindowsOptions: each field is the container's, or else the pod's.
func TestWindowsOptions(t *testing.T) {
	ofPod := &v1.WindowsSecurityContextOptions{RunAsUserName: ptr.To("pod"), HostProcess: ptr.To(false), GMSACredentialSpec: ptr.To("{}"), GMSACredentialSpecName: ptr.To("spec")}
	ofContainer := &v1.WindowsSecurityContextOptions{RunAsUserName: ptr.To("container"), HostProcess: ptr.To(true)}
	both := *ofPod
	both.RunAsUserName, both.HostProcess = ofContainer.RunAsUserName, ofContainer.HostProcess
	for name, c := range map[string]struct {
		pod, container *v1.WindowsSecurityContextOptions
		want           v1.WindowsSecurityContextOptions
	}{
		"none": {}, "of the pod": {pod: ofPod, want: *ofPod}, "of the container": {container: ofContainer, want: *ofContainer},
		"of both": {ofPod, ofContainer, both}, "of an empty container": {ofPod, &v1.WindowsSecurityContextOptions{}, *ofPod},
	} {
		pod, container := &v1.Pod{}, &v1.Container{}
		if c.pod != nil {
			pod.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: c.pod}
		}
		if c.container != nil {
			container.SecurityContext = &v1.SecurityContext{WindowsOptions: c.container}
		}
		if got := WindowsOptions(pod, container); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
