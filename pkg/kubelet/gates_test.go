package kubelet

import (
	"slices"
	"testing"
)

func TestGateNotes(t *testing.T) {
	const other = "Ignoring the feature gate MemoryQoS=false: this kubelet has no such gate"
	gates := map[string]bool{"MemoryQoS": false, GateHyperV: true, GateVolumeHealth: true}
	for system, want := range map[string][]string{
		"windows": {other},
		"linux":   {"Ignoring the feature gate HyperVContainer=true: only Windows has Hyper-V isolation", other},
	} {
		if got := GateNotes(gates, system); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", system, got, want)
		}
	}
}
