package hcs

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Microsoft/hcsshim"
	"golang.org/x/sys/windows/registry"
)

// Containers that test/windows/cover simulates in the Host Compute Service.
const simulated, unreadable = "winkube-test", "winkube-test-unreadable"

func TestMeasure(t *testing.T) {
	if _, err := Measure("winkube-test-none"); err == nil {
		t.Error("a container that is not there was measured")
	}
	got, err := Measure(simulated)
	if errors.Is(err, hcsshim.ErrComputeSystemDoesNotExist) {
		t.Skip("this Host Compute Service has no container for tests")
	}
	if err != nil {
		t.Fatal(err)
	}
	want := Statistics{CPU: 3 * time.Second, Commit: 5 << 20, PrivateWorkingSet: 4 << 20,
		Endpoints: []Endpoint{{ID: "e1", RxBytes: 1, TxBytes: 2, RxDropped: 3, TxDropped: 4}}}
	if got.CPU != want.CPU || got.Commit != want.Commit || got.PrivateWorkingSet != want.PrivateWorkingSet || !slices.Equal(got.Endpoints, want.Endpoints) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := Measure(unreadable); err == nil {
		t.Error("an answer that is no JSON was understood")
	}
}

// specsHeld returns the registry values whose names begin with prefix; absent: there is no key.
func specsHeld(t *testing.T, prefix string) (held map[string]string, absent bool) {
	t.Helper()
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, specsKey, registry.QUERY_VALUE)
	if errors.Is(err, registry.ErrNotExist) {
		return nil, true
	}
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	names, err := key.ReadValueNames(0)
	if err != nil {
		t.Fatal(err)
	}
	held = map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			if held[name], _, err = key.GetStringValue(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return held, false
}

// TestKeepCredentialSpecs: the registry has what is wanted, whatever it had before, and other programs' values.
func TestKeepCredentialSpecs(t *testing.T) {
	const ours, others, spec = "winkube_test_", "winkube_test-2_", `{"CmsPlugins":["ActiveDirectory"],"x":"ä \"quoted\""}`
	_, absent := specsHeld(t, "")
	t.Cleanup(func() {
		if absent {
			if err := registry.DeleteKey(registry.LOCAL_MACHINE, specsKey); err != nil {
				t.Error(err)
			}
		}
	})
	for _, step := range []struct {
		prefix string
		want   map[string]string
	}{
		{ours, nil}, // no key is created for nothing
		{ours, map[string]string{ours + "a": "old", ours + "b": spec}},
		{others, map[string]string{others + "a": "{}"}},
		{ours, map[string]string{ours + "a": spec, ours + "c": spec}},
		{ours, nil},
		{ours, nil},
	} {
		if err := KeepCredentialSpecs(step.prefix, step.want); err != nil {
			t.Fatal(err)
		}
		if got, none := specsHeld(t, step.prefix); !maps.Equal(got, step.want) || none && !absent {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	if got, _ := specsHeld(t, others); len(got) != 1 {
		t.Errorf("of the other agent there are %q", got)
	}
	if err := KeepCredentialSpecs(others, nil); err != nil {
		t.Error(err)
	}
	if err := KeepCredentialSpecs(ours, map[string]string{"a\x00b": "{}"}); err == nil {
		t.Error("a name with a zero in it was taken")
	}
}
