package docker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/pod"
)

// fakeRegistry is the part of Windows' that holds credential specs. It refuses names that would not be found again as ours.
type fakeRegistry struct {
	values  map[string]string
	history []string // the names after each change
	broken  error
}

func (r *fakeRegistry) keep(prefix string, want map[string]string) error {
	if r.broken != nil {
		return r.broken
	}
	maps.DeleteFunc(r.values, func(name, _ string) bool { return strings.HasPrefix(name, prefix) })
	for name, content := range want {
		if !strings.HasPrefix(name, prefix) || prefix == "" {
			return fmt.Errorf("the name %q does not begin with %q", name, prefix)
		}
		r.values[name] = content
	}
	r.history = append(r.history, strings.Join(slices.Sorted(maps.Keys(r.values)), " "))
	return nil
}

// TestCredentialOption: engines before 19.03 are told a name in the registry, later ones the credential spec itself.
func TestCredentialOption(t *testing.T) {
	p, spec := basePod(), `{"CmsPlugins":["ActiveDirectory"]}`
	p.Spec.SecurityContext = &v1.PodSecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{GMSACredentialSpec: &spec}}
	step := pod.Step{Container: "app", Kind: kindOfFirst(p), Attempt: 2, Inputs: &pod.Inputs{SandboxID: "5a5a"}}
	const named = "registry://winkube_node-1_k8s_app_web-0_shop_0a1b2c3d_2"
	for api, want := range map[string]string{"1.24": named, "1.30": named, "1.39": named, "1.40": "raw://" + spec, "1.51": "raw://" + spec, "": "raw://" + spec} {
		c, err := Convert(p, step, Target{Platform: windows2019, Node: "node-1", API: api})
		if err != nil || len(c.HostConfig.SecurityOpt) != 1 || c.HostConfig.SecurityOpt[0] != "credentialspec="+want {
			t.Errorf("API %s: %q, %v; want %s", api, c.HostConfig.SecurityOpt, err, want)
		}
		if held := c.CredentialSpec; (held != nil) != (want == named) || held != nil && (held.Content != spec || "registry://"+held.Name != named) {
			t.Errorf("API %s: the registry is to have %+v", api, held)
		}
	}
}

// TestCredentialSpecs: the registry has a credential spec while its container starts, and no longer; what an agent that was killed left goes.
func TestCredentialSpecs(t *testing.T) {
	const prefix, others = "winkube_n_", "contoso winkube_n-2_a"
	windows := &fakeRegistry{values: map[string]string{prefix + "old": "{}", "winkube_n-2_a": "another agent's", "contoso": "an administrator's"}}
	specs := func(host string) *registrySpecs {
		e, err := engine.New(engine.Config{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		return newRegistrySpecs("n", windows.keep, e)
	}
	started := 0
	start := func() error {
		started++
		return nil
	}
	spec := &CredentialSpec{Name: prefix + "new", Content: "{}"}
	if err := specs("tcp://127.0.0.1:1").during("c", spec, start); err == nil || !strings.Contains(err.Error(), "older than 19.03 and reads it from the registry of its own host") {
		t.Errorf("an engine elsewhere: %v", err)
	}
	local := specs("unix:///run/docker.sock")
	for range 2 {
		local.sweep()
	}
	if err := local.during("c", spec, func() error {
		if windows.values[spec.Name] != "{}" {
			t.Errorf("while the container starts the registry has %q", windows.values)
		}
		return start()
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{others, others + " " + prefix + "new", others}; !slices.Equal(windows.history, want) {
		t.Errorf("the registry had, one after the other,\n%q, want\n%q", windows.history, want)
	}
	windows.broken = errors.New("access denied")
	if err := local.during("c", spec, start); err == nil || !strings.Contains(err.Error(), "its credential spec: access denied") {
		t.Errorf("a registry that refuses: %v", err)
	}
	if windows.broken = nil; len(local.held) != 0 {
		t.Errorf("held are still %q", local.held)
	}
	if err := local.during("c", nil, start); err != nil || started != 2 || len(windows.history) != 3 {
		t.Errorf("without a credential spec: %v; %d containers were started, and the registry had %q", err, started, windows.history)
	}
}

// TestCredentialSpecsTogether: containers that start at the same time do not take each other's credential specs away.
func TestCredentialSpecsTogether(t *testing.T) {
	windows := &fakeRegistry{values: map[string]string{}}
	r := &registrySpecs{keep: windows.keep, prefix: "winkube_n_", held: map[string]string{}}
	hold := func(change func(held map[string]string)) {
		if err := r.change(change); err != nil {
			t.Error(err)
		}
	}
	hold(func(held map[string]string) { held["winkube_n_a"] = "{}" })
	hold(func(held map[string]string) { held["winkube_n_b"] = "{}" })
	hold(func(held map[string]string) { delete(held, "winkube_n_a") })
	hold(func(held map[string]string) { delete(held, "winkube_n_b") })
	if want := []string{"winkube_n_a", "winkube_n_a winkube_n_b", "winkube_n_b", ""}; !slices.Equal(windows.history, want) {
		t.Errorf("the registry had %q, want %q", windows.history, want)
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
