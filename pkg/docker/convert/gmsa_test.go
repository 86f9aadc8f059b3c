package convert

import (
	"testing"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/pod"
)

// TestCredentialOption: engines before 19.03 get a name in the registry, later ones the credential spec itself.
func TestCredentialOption(t *testing.T) {
	p, spec := basePod(), `{"CmsPlugins":["ActiveDirectory"]}`
	p.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{GMSACredentialSpec: &spec}}
	step := pod.Step{Container: "app", Kind: kindOfFirst(p), Attempt: 2, Inputs: &pod.Inputs{SandboxID: "5a5a"}}
	const named = "registry://winkube_node-1_k8s_app_web-0_shop_0a1b2c3d_2"
	for api, want := range map[string]string{"1.24": named, "1.30": named, "1.39": named, "1.40": "raw://" + spec, "1.51": "raw://" + spec, "": "raw://" + spec} {
		c, err := Container(p, step, Target{Platform: windows2019, Node: "node-1", API: api})
		if err != nil || len(c.HostConfig.SecurityOpt) != 1 || c.HostConfig.SecurityOpt[0] != "credentialspec="+want {
			t.Errorf("API %s: %q, %v; want %s", api, c.HostConfig.SecurityOpt, err, want)
		}
		if held := c.CredentialSpec; (held != nil) != (want == named) || held != nil && (held.Content != spec || "registry://"+held.Name != named) {
			t.Errorf("API %s: the registry is to have %+v", api, held)
		}
	}
}

// TestProcessors: a limit is correct on a host with more processors than the engine sees.
func TestProcessors(t *testing.T) {
	for _, test := range []struct {
		name      string
		limit     string
		isolation container.Isolation
		seen, all int
		byDefault bool
		want      int64
	}{
		{name: "one group", limit: "1500m", seen: 8, all: 8, want: 1.5e9},
		{name: "more than there are", limit: "100", seen: 8, all: 8, want: 8e9},
		{name: "two groups of 48", limit: "2", seen: 48, all: 96, want: 1e9},
		{name: "all of two groups", limit: "96", seen: 48, all: 96, want: 48e9},
		{name: "more than two groups", limit: "500", seen: 64, all: 128, want: 64e9},
		{name: "a virtual machine", limit: "2", isolation: container.IsolationHyperV, seen: 48, all: 96, want: 2e9},
		{name: "virtual machines by default", limit: "2", byDefault: true, seen: 48, all: 96, want: 2e9},
		{name: "process where virtual machines are the default", limit: "2", isolation: container.IsolationProcess, byDefault: true, seen: 48, all: 96, want: 1e9},
		{name: "not known", limit: "2", want: 2e9},
	} {
		p := basePod()
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(test.limit), v1.ResourceMemory: resource.MustParse("64Mi")}
		p.Annotations = map[string]string{"experimental.windows.kubernetes.io/isolation-type": string(test.isolation)}
		step := pod.Step{Container: "app", Kind: kindOfFirst(p), Inputs: &pod.Inputs{Sandbox: &pod.SandboxInputs{}}}
		platform := windows2019
		platform.HyperVContainer = true
		c, err := Container(p, step, Target{Platform: platform, CPUs: test.seen, HostCPUs: test.all, HyperV: test.byDefault})
		if err != nil || c.HostConfig.NanoCPUs != test.want || c.HostConfig.CPUPercent != 0 || c.HostConfig.CPUShares != 0 || c.HostConfig.Memory != 64<<20 {
			t.Errorf("%s: %+v, %v; want %d", test.name, c.HostConfig.Resources, err, test.want)
		}
	}
}
