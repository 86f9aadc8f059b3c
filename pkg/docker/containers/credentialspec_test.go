package containers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
)

// fakeRegistry is the part of Windows' registry that contains credential specs. It refuses names that we would not recognize later.
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

// TestCredentialSpecs: the registry has a credential spec only while its container starts; specs that a killed agent left are removed.
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
	spec := &convert.CredentialSpec{Name: prefix + "new", Content: "{}"}
	if err := specs("tcp://127.0.0.1:1").during("c", spec, start); err == nil || !strings.Contains(err.Error(), "older than 19.03 and reads credential specs from its host's registry") {
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

// TestCredentialSpecsTogether: containers that start at the same time do not remove each other's credential specs.
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
