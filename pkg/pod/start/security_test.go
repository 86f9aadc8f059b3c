package start

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
)

func TestWindowsRoot(t *testing.T) {
	for user, want := range map[string]bool{
		"ContainerAdministrator": true, "containeradministrator": true, `User Manager\ContainerAdministrator`: true, "S-1-5-93-2-1": true,
		"s-1-5-18": true, `NT AUTHORITY\SYSTEM`: true, "ContainerUser": false, "S-1-5-93-2-2": false, `CONTOSO\ContainerAdministrator`: false, "": false, "SYSTEM": true,
	} {
		if got := isWindowsRoot(user); got != want {
			t.Errorf("%q: %v, want %v", user, got, want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestRefuse(t *testing.T) {
	linux := pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}
	server2016 := pod.Platform{OS: "windows", Arch: "amd64", Build: 14393}
	server2022 := pod.Platform{OS: "windows", Arch: "amd64", Build: 20348, SharedNetwork: true}
	apps := func(n int) []v1.Container { return make([]v1.Container, n) }
	always := v1.ContainerRestartPolicyAlways
	gmsa := func(spec, name string) *v1.WindowsSecurityContextOptions {
		return &v1.WindowsSecurityContextOptions{GMSACredentialSpec: &spec, GMSACredentialSpecName: &name}
	}
	hostProcess := &v1.WindowsSecurityContextOptions{HostProcess: ptr(true)}
	for _, test := range []struct {
		name     string
		platform pod.Platform
		spec     v1.PodSpec
		want     string
	}{
		{name: "common pod", platform: linux, spec: v1.PodSpec{Containers: apps(3), HostUsers: ptr(true), HostNetwork: true}},
		{name: "user namespace", platform: linux, spec: v1.PodSpec{Containers: apps(1), HostUsers: ptr(false)}, want: "spec.hostUsers: false is not possible here"},
		{name: "resource claims", platform: linux, spec: v1.PodSpec{Containers: apps(1), ResourceClaims: []v1.PodResourceClaim{{}}}, want: "spec.resourceClaims is not supported"},
		{name: "host network on Windows", platform: server2022, spec: v1.PodSpec{Containers: apps(1), HostNetwork: true}, want: "spec.hostNetwork: true is not possible here"},
		{name: "two containers on 2022", platform: server2022, spec: v1.PodSpec{Containers: apps(2)}},
		{name: "one container on 2016", platform: server2016, spec: v1.PodSpec{Containers: apps(1), InitContainers: apps(2)}},
		{name: "two containers on 2016", platform: server2016, spec: v1.PodSpec{Containers: apps(2)}, want: "the pod has 2 containers that run at the same time, but on this host (windows build 14393)"},
		{name: "sidecar on 2016", platform: server2016, spec: v1.PodSpec{Containers: apps(1), InitContainers: []v1.Container{{RestartPolicy: &always}}}, want: "the pod has 2 containers"},
		{name: "devices", platform: server2022, spec: v1.PodSpec{Containers: []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "disk"}}}}}, want: "volumeDevices (disk) are not possible here"},
		{name: "devices on Linux", platform: linux, spec: v1.PodSpec{Containers: []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "disk"}}}}}},
		{name: "a credential spec that is no JSON", platform: server2022, spec: v1.PodSpec{Containers: apps(1), SecurityContext: &v1.PodSecurityContext{WindowsOptions: gmsa("CmsPlugins: x", "")}}, want: "gmsaCredentialSpec is not a JSON object"},
		{name: "a credential spec that is a list", platform: server2022, spec: v1.PodSpec{Containers: apps(1), SecurityContext: &v1.PodSecurityContext{WindowsOptions: gmsa("[]", "")}}, want: "gmsaCredentialSpec is not a JSON object"},
		{name: "a credential spec without content", platform: server2022, spec: v1.PodSpec{Containers: apps(1), SecurityContext: &v1.PodSecurityContext{WindowsOptions: gmsa("", "web")}}, want: `gmsaCredentialSpecName is "web" and gmsaCredentialSpec is empty`},
		{name: "a credential spec", platform: server2022, spec: v1.PodSpec{Containers: apps(1), SecurityContext: &v1.PodSecurityContext{WindowsOptions: gmsa("{}", "web")}}},
		{name: "host process of the pod", platform: server2022, spec: v1.PodSpec{Containers: apps(1), SecurityContext: &v1.PodSecurityContext{WindowsOptions: hostProcess}}, want: "hostProcess: true is not possible"},
		{name: "host process of the container", platform: server2022, spec: v1.PodSpec{Containers: []v1.Container{{SecurityContext: &v1.SecurityContext{WindowsOptions: hostProcess}}}}, want: "hostProcess: true is not possible"},
		{name: "host process on Linux", platform: linux, spec: v1.PodSpec{Containers: apps(1), HostNetwork: true, SecurityContext: &v1.PodSecurityContext{WindowsOptions: hostProcess}}},
		{name: "host process taken back", platform: server2022, spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{WindowsOptions: hostProcess},
			Containers: []v1.Container{{SecurityContext: &v1.SecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{HostProcess: ptr(false)}}}}}},
	} {
		p := &v1.Pod{Spec: test.spec}
		got := refusePod(p, test.platform)
		if got == "" {
			got = refuseContainer(p, &p.Spec.Containers[0], test.platform)
		}
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestCheckNonRoot(t *testing.T) {
	const where = ` (pod: "web_shop(u1)", container: app)`
	for _, test := range []struct {
		name      string
		os        string
		pod       *v1.PodSecurityContext
		container *v1.SecurityContext
		user      string
		want      string
	}{
		{name: "no user requested", user: "root"},
		{name: "taken back", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true)}, container: &v1.SecurityContext{RunAsNonRoot: ptr(false)}},
		{name: "empty image user", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true)}, want: "container has runAsNonRoot and image will run as root"},
		{name: "image user 0", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "0:5", want: "container has runAsNonRoot and image will run as root"},
		{name: "image user 1000", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "1000"},
		{name: "image user 1000:0", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "1000:0"},
		{name: "image user by name", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "app:app",
			want: "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root"},
		{name: "image user out of range", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "4294967296",
			want: "container has runAsNonRoot and image has an invalid user id (4294967296). (Must be 1-2147483647)"},
		{name: "image user negative", container: &v1.SecurityContext{RunAsNonRoot: ptr(true)}, user: "-1", want: "container has runAsNonRoot and image has an invalid user id (-1). (Must be 1-2147483647)"},
		{name: "pod's user", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: ptr[int64](5)}, user: "root"},
		{name: "pod's user 0", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: ptr[int64](0)}, user: "7", want: "container's runAsUser breaks non-root policy"},
		{name: "container's user wins", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: ptr[int64](0)}, container: &v1.SecurityContext{RunAsUser: ptr[int64](3)}},
		{name: "Windows", os: "windows", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true)}},
		{name: "Windows ignores numbers", os: "windows", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: ptr[int64](0)}, user: "ContainerUser"},
		{name: "Windows administrator in the image", os: "windows", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true)}, user: "containeradministrator",
			want: "container's runAsUser (containeradministrator) which will be regarded as root identity and will break non-root policy"},
		{name: "Windows user", os: "windows", user: "ContainerAdministrator", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: ptr("me")}}},
		{name: "Windows administrator", os: "windows", pod: &v1.PodSecurityContext{RunAsNonRoot: ptr(true), WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: ptr("me")}},
			container: &v1.SecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: ptr("ContainerAdministrator")}},
			want:      "container's runAsUserName (ContainerAdministrator) which will be regarded as root identity and will break non-root policy"},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}, Spec: v1.PodSpec{SecurityContext: test.pod}}
		got, want := "", test.want
		if err := checkNonRoot(p, &v1.Container{Name: "app", SecurityContext: test.container}, test.user, test.os); err != nil {
			got = err.Error()
		}
		if want != "" {
			want += where
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", test.name, got, want)
		}
	}
}

func memory(request, limit string) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	if request != "" {
		r.Requests["memory"] = resource.MustParse(request)
	}
	if limit != "" {
		r.Limits["memory"] = resource.MustParse(limit)
		r.Limits["cpu"] = resource.MustParse("1")
	}
	return r
}

func TestOOMScoreAdj(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	app := func(request, limit string) v1.Container {
		return v1.Container{Name: "app", Resources: memory(request, limit)}
	}
	sidecar := func(request string) v1.Container {
		return v1.Container{Name: "side", Resources: memory(request, ""), RestartPolicy: &always}
	}
	critical := metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}}
	for _, test := range []struct {
		name string
		pod  v1.Pod
		init bool // for the first init container
		want int
		node int64
	}{
		{name: "best effort", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("", "")}}}, want: 1000},
		{name: "guaranteed", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "1Gi")}}}, want: -997},
		{name: "limits alone are guaranteed", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("", "1Gi")}}}, want: -997},
		{name: "burstable", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "")}}}, want: 900},
		{name: "next to nothing", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Ki", "")}}}, want: 999},
		{name: "all of the node", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("10Gi", "")}}}, want: 3},
		{name: "more than the node", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("20Gi", "")}}}, want: 3},
		{name: "memory not known", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "")}}}, node: -1, want: 999},
		{name: "status decides", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "")}}, Status: v1.PodStatus{QOSClass: v1.PodQOSGuaranteed}}, want: -997},
		{name: "sidecar", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("2Gi", ""), app("4Gi", "")}, InitContainers: []v1.Container{sidecar("1Gi")}}}, init: true, want: 800},
		{name: "large sidecar", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "")}, InitContainers: []v1.Container{sidecar("3Gi")}}}, init: true, want: 700},
		{name: "pod's own request", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", ""), app("1Gi", "")}, Resources: ptr(memory("4Gi", ""))}}, want: 800},
		{name: "node critical", pod: v1.Pod{ObjectMeta: critical, Spec: v1.PodSpec{PriorityClassName: "system-node-critical", Containers: []v1.Container{app("", "")}}}, want: -997},
		{name: "critical by priority", pod: v1.Pod{Spec: v1.PodSpec{Priority: ptr[int32](2000001000), PriorityClassName: "system-node-critical", Containers: []v1.Container{app("", "")}}}, want: -997},
		{name: "cluster critical", pod: v1.Pod{ObjectMeta: critical, Spec: v1.PodSpec{PriorityClassName: "system-cluster-critical", Containers: []v1.Container{app("", "")}}}, want: 1000},
		{name: "one of two unlimited", pod: v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{app("1Gi", "1Gi"), app("", "")}}}, want: 900},
	} {
		c := &test.pod.Spec.Containers[0]
		if test.init {
			c = &test.pod.Spec.InitContainers[0]
		}
		node := int64(10 << 30)
		if test.node != 0 {
			node = 0
		}
		if got := oomScoreAdj(&test.pod, c, node); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}
