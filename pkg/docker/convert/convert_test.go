package convert

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func resources(cpu, memory string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}}
}

func ptr[T any](v T) *T { return &v }

var (
	linux       = pod.Platform{OS: "linux", Arch: "amd64", SharedNetwork: true}
	windows2016 = pod.Platform{OS: "windows", Arch: "amd64", Build: 14393}
	windows2019 = pod.Platform{OS: "windows", Arch: "amd64", Build: 17763, SharedNetwork: true}
)

// platforms are those of the golden files.
var platforms = map[string]pod.Platform{
	"linux":         linux,
	"windows-14393": windows2016,
	"windows-17763": windows2019,
	"windows-20348": {OS: "windows", Arch: "amd64", Build: 20348, SharedNetwork: true},
	"windows-26100": {OS: "windows", Arch: "amd64", Build: 26100, SharedNetwork: true},
}

// apis are those of older engines: Docker 17.06 is the one of Server 2016.
var apis = map[string]string{"windows-14393": "1.30"}

func basePod() *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "0a1b2c3d"}}
	p.Spec.Containers = []v1.Container{{
		Name: "app", Image: "registry.test/app:2", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
	}}
	return p
}

// goldens are the cases. files and host are the results of Resolve on the platform.
var goldens = []struct {
	name string
	edit func(*v1.Pod, *pod.Inputs, *pod.SandboxInputs)
}{
	{"plain", func(*v1.Pod, *pod.Inputs, *pod.SandboxInputs) {}},
	{"everything", func(p *v1.Pod, in *pod.Inputs, s *pod.SandboxInputs) {
		p.Spec.TerminationGracePeriodSeconds = ptr(int64(5))
		p.Spec.ShareProcessNamespace = ptr(true)
		p.Spec.SecurityContext = &v1.PodSecurityContext{
			RunAsUser: ptr(int64(1000)), FSGroup: ptr(int64(2000)), SupplementalGroups: []int64{3000, 2000},
			Sysctls:        []v1.Sysctl{{Name: "net/ipv4/ip_local_port_range", Value: "1024 65000"}, {Name: "kernel.shm_rmid_forced", Value: "1"}},
			SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c1,c2"}, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
			WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: ptr("ContainerUser"), GMSACredentialSpec: ptr(`{"CmsPlugins":["ActiveDirectory"]}`)},
		}
		c := &p.Spec.Containers[0]
		c.WorkingDir, c.Stdin, c.StdinOnce, c.TTY = "/srv/app", true, true, true
		c.Ports = []v1.ContainerPort{
			{ContainerPort: 80, HostPort: 8080}, {ContainerPort: 53, HostPort: 53, Protocol: v1.ProtocolUDP, HostIP: "10.0.0.1"}, {ContainerPort: 9},
		}
		c.Resources = resources("1500m", "256Mi")
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}
		c.SecurityContext = &v1.SecurityContext{
			RunAsGroup: ptr(int64(1001)), ReadOnlyRootFilesystem: ptr(true), AllowPrivilegeEscalation: ptr(false),
			Capabilities:    &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN", "CAP_SYS_TIME"}, Drop: []v1.Capability{"ALL"}},
			AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr("k8s-strict")},
		}
		in.Entrypoint, in.Args = []string{"/bin/app", "-x"}, []string{"one", "two words"}
		in.Env = []pod.Env{{Name: "A", Value: "1"}, {Name: "B", Value: "x=y"}, {Name: "A", Value: "2"}}
		in.OOMScoreAdj = 987
		in.Mounts = []pod.Mount{
			{Name: "data", HostPath: "/var/data", ContainerPath: "/data"},
			{Name: "config", HostPath: "/etc/config", ContainerPath: "/config", ReadOnly: true, Propagation: v1.MountPropagationHostToContainer},
			{Name: "devices", HostPath: "/dev/disk", ContainerPath: "/disk", Propagation: v1.MountPropagationBidirectional},
			{Name: "deep", HostPath: "/srv", ContainerPath: "/srv", ReadOnly: true, Recursive: true},
		}
		in.Devices = []pod.Device{{HostPath: "/dev/sdb", ContainerPath: "/dev/xvda"}, {HostPath: "/dev/sdc", ContainerPath: "/dev/xvdb", ReadOnly: true}}
		in.Runtime, s.Runtime = "runsc", "runsc"
		c.Lifecycle = &v1.Lifecycle{StopSignal: ptr(v1.SIGUSR1)}
		s.DNS = pod.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local"}, Options: []string{"ndots:5"}}
	}},
	{"host", func(p *v1.Pod, in *pod.Inputs, s *pod.SandboxInputs) {
		p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.HostIPC = true, true, true
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: ptr(true)}
		p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		s.Network = "host"
		in.OOMScoreAdj = -997
	}},
	{"hyperv", func(p *v1.Pod, _ *pod.Inputs, _ *pod.SandboxInputs) {
		p.Annotations = map[string]string{"experimental.windows.kubernetes.io/isolation-type": "hyperv"}
		p.Spec.Containers[0].Resources = resources("64", "1Gi")
	}},
	{"target", func(p *v1.Pod, in *pod.Inputs, _ *pod.SandboxInputs) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(p.Spec.Containers[0]), TargetContainerName: "web"}}
		p.Spec.Containers, in.TargetID = nil, "c0de"
	}},
	{"handler", func(p *v1.Pod, in *pod.Inputs, s *pod.SandboxInputs) {
		in.Runtime, s.Runtime = "runhcs-wcow-hypervisor", "runhcs-wcow-hypervisor"
	}},
	{"init", func(p *v1.Pod, _ *pod.Inputs, _ *pod.SandboxInputs) {
		p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
	}},
}

// TestConvertGolden shows the request for every case on every platform.
func TestConvertGolden(t *testing.T) {
	for name, platform := range platforms {
		for _, test := range goldens {
			if platform.OS == "windows" && (test.name == "host" || test.name == "target") || platform.OS == "linux" && (test.name == "hyperv" || test.name == "handler") {
				continue // admission refuses the one, the other does not occur
			}
			t.Run(test.name+" on "+name, func(t *testing.T) {
				p, windows := basePod(), platform.OS == "windows"
				box := &pod.SandboxInputs{Network: "cbr0", Hostname: "web-0"}
				in := &pod.Inputs{Image: pod.Image{ID: "sha256:1111", Ref: "docker-pullable://registry.test/app@sha256:2222"}, SandboxID: "5a5a", OOMScoreAdj: 1000}
				if !windows {
					in.TerminationLog = "/var/lib/kubelet/pods/0a1b2c3d/termination-app-2"
					in.Files = []pod.File{{HostPath: "/var/lib/kubelet/pods/0a1b2c3d/etc-hosts", ContainerPath: "/etc/hosts"}}
					box.Files = []pod.File{{HostPath: "/var/lib/kubelet/pods/0a1b2c3d/resolv.conf", ContainerPath: "/etc/resolv.conf", ReadOnly: true}}
				}
				test.edit(p, in, box)
				if windows {
					in.Searches = []string{"shop.svc.cluster.local", "svc.cluster.local"}
					in.Mounts = []pod.Mount{
						{Name: "data", HostPath: `C:\data`, ContainerPath: "/data", ReadOnly: true},
						{Name: "pipe", HostPath: `\\.\pipe\docker_engine`, ContainerPath: `\\.\pipe\docker_engine`},
						{Name: "disk", HostPath: "d:/logs", ContainerPath: `E:\logs`},
					}
				}
				target := Target{Platform: platform, Node: "node-1", CPUs: 8, LogMaxSize: 10 << 20, LogMaxFiles: 5, MinOOMScoreAdj: MinOOMScoreAdj, Hash: "cafe", API: apis[name]}
				if !windows {
					target.HostAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fd00::7")}
					target.CgroupParent = "/kubepods"
				}
				target.Platform.HyperVContainer = windows
				var made []Creation
				if platform.SharedNetwork {
					made = append(made, sandboxOf(t, p, box, target))
				} else {
					in.SandboxID, in.Sandbox = "", box
				}
				c, err := Container(p, pod.Step{Action: pod.StartContainer, Container: "app", Kind: kindOfFirst(p), Attempt: 2, Inputs: in}, target)
				if err != nil {
					t.Fatal(err)
				}
				made = append(made, c)
				for i := range made {
					made[i].Config = identity.Seal(made[i].Config)
				}
				golden(t, test.name+"."+name, made)
			})
		}
	}
}

// kindOfFirst is the kind of the pod's only container.
func kindOfFirst(p *v1.Pod) podspec.Kind {
	for kind := range podspec.Containers(p) {
		return kind
	}
	return podspec.App
}

func sandboxOf(t *testing.T, p *v1.Pod, in *pod.SandboxInputs, target Target) Creation {
	t.Helper()
	c, err := Sandbox(p, pod.Step{Action: pod.CreateSandbox, Attempt: 1, Sandbox: in}, "registry.test/pause:1", target)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// golden compares the requests with the file, without unset fields.
func golden(t *testing.T, name string, made []Creation) {
	t.Helper()
	raw, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(sparse(tree), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text) + "\n"; got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s differs; run with -update and look at the difference. Now:\n%s", file, got)
	}
}

// sparse drops null, "", 0 and false. Empty lists stay: they differ from missing ones (MaskedPaths).
func sparse(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if list, ok := value.([]any); ok && len(list) == 2 && list[0] == 0.0 && list[1] == 0.0 { // ConsoleSize
				delete(v, key)
			} else if value = sparse(value); value == nil || value == "" || value == 0.0 || value == false {
				delete(v, key)
			} else if inner, ok := value.(map[string]any); ok && len(inner) == 0 && key != "80/tcp" {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = sparse(v[i])
		}
	}
	return v
}

// TestConvertTwice: Convert is pure: the same step gives the same creation and the pod does not change.
func TestConvertTwice(t *testing.T) {
	for _, test := range goldens {
		p, in, box := basePod(), &pod.Inputs{SandboxID: "5a5a"}, &pod.SandboxInputs{}
		test.edit(p, in, box)
		before := p.DeepCopy()
		step := pod.Step{Container: "app", Kind: kindOfFirst(p), Inputs: in}
		a, err1 := Container(p, step, Target{Platform: linux})
		b, err2 := Container(p, step, Target{Platform: linux})
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if err1 != nil || err2 != nil || string(x) != string(y) || fmt.Sprint(p) != fmt.Sprint(before) {
			t.Errorf("%s: %v, %v", test.name, err1, err2)
		}
	}
}

func TestConvertDetails(t *testing.T) {
	convert := func(t *testing.T, target Target, edit func(*v1.Pod, *pod.Inputs)) (*container.Config, *container.HostConfig, error) {
		p, in := basePod(), &pod.Inputs{SandboxID: "5a5a", Image: pod.Image{User: "www:www"}}
		edit(p, in)
		c, err := Container(p, pod.Step{Container: "app", Kind: podspec.App, Inputs: in}, target)
		return c.Config, c.HostConfig, err
	}
	users := []struct {
		uid, gid *int64
		image    string
		want     string
	}{
		{nil, nil, "www", ""}, {ptr(int64(0)), nil, "www", "0"}, {ptr(int64(5)), ptr(int64(6)), "www", "5:6"},
		{nil, ptr(int64(6)), "www:www", "www:6"}, {nil, ptr(int64(6)), "", "0:6"},
	}
	for _, test := range users {
		config, _, err := convert(t, Target{Platform: linux}, func(p *v1.Pod, in *pod.Inputs) {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsUser: test.uid, RunAsGroup: test.gid}
			in.Image.User = test.image
		})
		if err != nil || config.User != test.want {
			t.Errorf("%+v: %q, %v", test, config.User, err)
		}
	}
	security := []struct {
		name string
		sc   v1.SecurityContext
		t    Target
		want []string
	}{
		{"nothing asked", v1.SecurityContext{}, Target{}, []string{"seccomp=unconfined"}},
		{"seccompDefault", v1.SecurityContext{}, Target{SeccompDefault: true}, nil},
		{"localhost", v1.SecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr("a.json")}},
			Target{SeccompProfile: "{}"}, []string{"seccomp={}"}},
		{"apparmor unconfined", v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}}, Target{SeccompDefault: true},
			[]string{"apparmor=unconfined"}},
		{"apparmor of the engine", v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}, Target{SeccompDefault: true}, nil},
	}
	for _, test := range security {
		test.t.Platform = linux
		_, h, err := convert(t, test.t, func(p *v1.Pod, _ *pod.Inputs) { p.Spec.Containers[0].SecurityContext = &test.sc })
		if err != nil || !slices.Equal(h.SecurityOpt, test.want) {
			t.Errorf("%s: %q, %v", test.name, h.SecurityOpt, err)
		}
	}
	_, h, err := convert(t, Target{Platform: linux, MinOOMScoreAdj: 0}, func(p *v1.Pod, in *pod.Inputs) {
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{ProcMount: ptr(v1.UnmaskedProcMount)}
		in.OOMScoreAdj = -997
		in.Mounts = []pod.Mount{{Name: "odd", HostPath: "/a:b", ContainerPath: "/c", ReadOnly: true, Propagation: v1.MountPropagationHostToContainer}}
	})
	if err != nil || h.OomScoreAdj != 0 || h.MaskedPaths == nil || h.ReadonlyPaths == nil {
		t.Errorf("%+v, %v", h, err)
	}
	if len(h.Mounts) != 1 || h.Mounts[0].Source != "/a:b" || !h.Mounts[0].ReadOnly || h.Mounts[0].BindOptions.Propagation != "rslave" || len(h.Binds) != 0 {
		t.Errorf("path with a colon: %+v %v", h.Mounts, h.Binds)
	}
	refusals := map[string]func(*v1.Pod, *pod.Inputs){
		"hostProcess": func(p *v1.Pod, _ *pod.Inputs) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{HostProcess: ptr(true)}}
		},
		"no app container": func(p *v1.Pod, _ *pod.Inputs) { p.Spec.Containers = nil },
	}
	for want, edit := range refusals {
		if _, _, err := convert(t, Target{Platform: windows2019}, edit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for want, edit := range map[string]func(*v1.Pod, *pod.Inputs){
		"mountPropagation": func(_ *v1.Pod, in *pod.Inputs) { in.Mounts = []pod.Mount{{Name: "x", Propagation: "Odd"}} },
		"seccompProfile": func(p *v1.Pod, _ *pod.Inputs) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost}}
		},
		"appArmorProfile": func(p *v1.Pod, _ *pod.Inputs) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: "Odd"}}
		},
	} {
		if _, _, err := convert(t, Target{Platform: linux}, edit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	colon := func(_ *v1.Pod, in *pod.Inputs) {
		in.Mounts = []pod.Mount{{Name: "odd", HostPath: "/a:b", ContainerPath: "/c"}}
	}
	if _, _, err := convert(t, Target{Platform: linux, API: "1.24"}, colon); err == nil || !strings.Contains(err.Error(), "colon") {
		t.Errorf("an engine that knows no Mounts: %v", err)
	}
}

// The infra container is confined like a container of the pod without a profile; it does not get a profile made for the pod's programs.
func TestSandboxSeccomp(t *testing.T) {
	localhost := &v1.SeccompProfile{Type: v1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr("a.json")}
	for name, test := range map[string]struct {
		profile *v1.SeccompProfile
		byAgent bool
		want    []string
	}{
		"nothing asked":  {nil, false, []string{"seccomp=unconfined"}},
		"seccompDefault": {nil, true, nil},
		"unconfined":     {&v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}, true, []string{"seccomp=unconfined"}},
		"the engine's":   {&v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}, false, nil},
		"a file's":       {localhost, false, nil},
	} {
		p := basePod()
		p.Spec.SecurityContext = &v1.PodSecurityContext{SeccompProfile: test.profile}
		out, err := Sandbox(p, pod.Step{Sandbox: &pod.SandboxInputs{Network: "cbr0"}}, "pause", Target{Platform: linux, SeccompDefault: test.byAgent})
		if err != nil || !slices.Equal(out.HostConfig.SecurityOpt, test.want) {
			t.Errorf("%s: got %q, %v, want %q", name, out.HostConfig.SecurityOpt, err, test.want)
		}
	}
}

// TestInterfaceSysctls: without an engine network the pod's interface is created later, and its sysctls with it.
func TestInterfaceSysctls(t *testing.T) {
	p := basePod()
	p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "net.ipv4.conf.eth0.forwarding", Value: "1"}, {Name: "net/core/somaxconn", Value: "9"}}}
	for network, want := range map[string]string{"winkube": "map[net.core.somaxconn:9 net.ipv4.conf.eth0.forwarding:1]", "none": "map[net.core.somaxconn:9]"} {
		out := sandboxOf(t, p, &pod.SandboxInputs{Network: network}, Target{Platform: linux})
		if got := fmt.Sprint(out.HostConfig.Sysctls); got != want {
			t.Errorf("network %s: got %s, want %s", network, got, want)
		}
	}
}
