package podspec

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestContainerRef(t *testing.T) {
	for kind, want := range map[Kind]string{App: "spec.containers{x}", Init: "spec.initContainers{x}", Ephemeral: "spec.ephemeralContainers{x}"} {
		if got := ContainerReference(&v1.Pod{}, "x", kind).FieldPath; got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}
