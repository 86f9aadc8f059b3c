package admit

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
)

func TestSysctls(t *testing.T) {
	allowed, err := NewSysctls("6.1.0-18-amd64", []string{"kernel.msg*", "net/core/somaxconn"})
	if err != nil {
		t.Fatal(err)
	}
	old, err := NewSysctls("4.4.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		allowed Sysctls
		edit    func(*v1.PodSpec)
		want    string
	}{
		{"kernel.shm_rmid_forced", old, nil, ""},
		{"net/ipv4/tcp_syncookies", old, nil, ""},
		{"net.ipv4.tcp_keepalive_time", old, nil, `"net.ipv4.tcp_keepalive_time" not allowlisted`},
		{"net.ipv4.tcp_keepalive_time", allowed, nil, ""},
		{"kernel.msgmax", allowed, nil, ""},
		{"kernel.msgmax", old, nil, `"kernel.msgmax" not allowlisted`},
		{"net.core.somaxconn", allowed, nil, ""},
		{"vm.swappiness", allowed, nil, `"vm.swappiness" not allowlisted`},
		{"kernel.shm_rmid_forced", old, func(s *v1.PodSpec) { s.HostIPC = true }, `"kernel.shm_rmid_forced" not allowed with host IPC enabled`},
		{"net.core.somaxconn", allowed, func(s *v1.PodSpec) { s.HostNetwork = true }, `"net.core.somaxconn" not allowed with host Net enabled`},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: test.name, Value: "1"}}}}}
		if test.edit != nil {
			test.edit(&p.Spec)
		}
		a := New(Config{Platform: pod.Platform{OS: "linux"}, MaxPods: 1, Allocatable: func() v1.ResourceList { return nil }, Node: func() *v1.Node { return nil }, Sysctls: test.allowed})
		checkRejection(t, test.name, a.Admit(p), ReasonSysctl, "forbidden sysctl: ", test.want)
	}
	if _, err := NewSysctls("6.1", []string{"vm.*"}); err == nil || !strings.Contains(err.Error(), `"vm.*"`) {
		t.Errorf("a sysctl of the whole host: %v", err)
	}
}

func checkRejection(t *testing.T, name string, got *pod.Rejection, reason, prefix, want string) {
	t.Helper()
	switch {
	case want == "" && got != nil:
		t.Errorf("%s: %+v", name, got)
	case want != "" && (got == nil || got.Reason != reason || got.Message != prefix+want):
		t.Errorf("%s: %+v, want %s", name, got, want)
	}
}

func TestAppArmor(t *testing.T) {
	local := &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: new("k8s-strict")}
	annotation := func(value string) map[string]string {
		return map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "app": value}
	}
	const absent = "AppArmor is not enabled on the host"
	for _, test := range []struct {
		name        string
		annotations map[string]string
		pod         *v1.AppArmorProfile
		container   *v1.AppArmorProfile
		enabled     bool
		want        string
	}{
		{name: "nothing"},
		{name: "unconfined", pod: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}},
		{name: "pod", pod: local, want: absent}, {name: "pod, enabled", pod: local, enabled: true},
		{name: "container", container: local, want: absent},
		{name: "the container takes it back", pod: local, container: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}},
		{name: "annotation", annotations: annotation("localhost/k8s-strict"), want: absent},
		{name: "annotation of the default", annotations: annotation("runtime/default"), want: absent},
		{name: "annotation unconfined", annotations: annotation("unconfined"), pod: local},
		{name: "no name", container: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost}, enabled: true, want: "invalid empty AppArmor profile name of container app"},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}
		p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: test.pod}
		p.Spec.Containers = []v1.Container{{Name: "app", SecurityContext: &v1.SecurityContext{AppArmorProfile: test.container}}}
		checkRejection(t, test.name, refuseAppArmor(p, test.enabled), ReasonAppArmor, "Cannot enforce AppArmor: ", test.want)
	}
}
