package kubelet

import (
	"fmt"
	"maps"
	"slices"
)

// Upstream's feature gates that this kubelet has.
const (
	GateVolumeHealth = "CSIVolumeHealth" // alpha in upstream 1.36, and off
	GateHyperV       = "HyperVContainer" // alpha in upstream 1.10 to 1.20, and off; Windows only
)

// GateNotes says which of the feature gates have no effect on a host of that system, sorted by name.
func GateNotes(gates map[string]bool, system string) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		switch {
		case name == GateVolumeHealth, name == GateHyperV && system == "windows":
		case name == GateHyperV:
			notes = append(notes, fmt.Sprintf("Ignoring the feature gate %s=%t: only Windows has Hyper-V isolation", name, gates[name]))
		default:
			notes = append(notes, fmt.Sprintf("Ignoring the feature gate %s=%t: this kubelet has no such gate", name, gates[name]))
		}
	}
	return notes
}
