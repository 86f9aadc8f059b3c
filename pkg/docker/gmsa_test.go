package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestCredentialSpecs: engines before 19.03 read a credential spec from a file, which is there while the container starts and no longer.
func TestCredentialSpecs(t *testing.T) {
	p, spec := basePod(), `{"CmsPlugins":["ActiveDirectory"]}`
	p.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{GMSACredentialSpec: &spec}}
	step := pod.Step{Container: "app", Kind: kindOfFirst(p), Attempt: 2, Inputs: &pod.Inputs{SandboxID: "5a5a"}}
	for api, want := range map[string]string{"1.30": "file://winkube-node-1-k8s_app_web-0_shop_0a1b2c3d_2.json", "1.39": "file://winkube-node-1-k8s_app_web-0_shop_0a1b2c3d_2.json", "1.40": "raw://" + spec, "": "raw://" + spec} {
		c, err := Convert(p, step, Target{Platform: windows2019, Node: "node-1", API: api})
		if err != nil || len(c.HostConfig.SecurityOpt) != 1 || c.HostConfig.SecurityOpt[0] != "credentialspec="+want {
			t.Errorf("API %s: %q, %v; want %s", api, c.HostConfig.SecurityOpt, err, want)
		}
		if file := c.CredentialSpec; (file != nil) != strings.HasPrefix(want, "file") || file != nil && (file.Content != spec || !strings.HasSuffix(want, file.Name)) {
			t.Errorf("API %s: file %+v", api, file)
		}
	}

	r := fakeRig(t, dockertest.Options{OS: "windows", Build: 17763}, nil)
	one := r.pod("gmsa", []string{"pause"})
	target, err := r.target(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	creation, err := Convert(one, r.step(one, 0, r.sandbox(one)), target)
	if err != nil {
		t.Fatal(err)
	}
	creation.CredentialSpec = &CredentialSpec{Name: "winkube-x.json", Content: spec}
	id, _, err := r.create(t.Context(), one, creation)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.startWith(t.Context(), id, creation); err == nil || !strings.Contains(err.Error(), "older than 19.03 and reads it from its own disk") {
		t.Errorf("an engine elsewhere: %v", err)
	}
	r.Engine.host = "npipe:////./pipe/docker_engine" // as if the engine that answers by TCP were on this host
	root := t.TempDir()
	r.Engine.root.Store(root)
	dir := filepath.Join(root, "CredentialSpecs")
	old, others := filepath.Join(dir, "winkube-"+r.cfg.Node+"-old.json"), filepath.Join(dir, "contoso.json")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(old, nil, 0o644), os.WriteFile(others, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := r.startWith(t.Context(), id, creation); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "contoso.json" {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// TestProcessors: a limit holds on a host with more processors than the engine sees.
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
		c, err := Convert(p, step, Target{Platform: windows2019, CPUs: test.seen, HostCPUs: test.all, HyperV: test.byDefault})
		if err != nil || c.HostConfig.NanoCPUs != test.want || c.HostConfig.CPUPercent != 0 || c.HostConfig.CPUShares != 0 || c.HostConfig.Memory != 64<<20 {
			t.Errorf("%s: %+v, %v; want %d", test.name, c.HostConfig.Resources, err, test.want)
		}
	}
}
