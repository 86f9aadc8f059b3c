package network

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// RemovableNetworks is the part of EngineNetworks that Remove needs.
type RemovableNetworks interface {
	Networks(ctx context.Context) ([]pod.EngineNetwork, error)
	RemoveNetwork(ctx context.Context, name string) error
}

// Remove removes all pod networks of ours, for a host that is no longer a node: the engine's networks, the configuration of Host, and on Windows
// networks of HNS by name, which removeHNS removes with their endpoints. It returns the names of the removed networks. The engine refuses while
// containers use a network.
func Remove(ctx context.Context, engine RemovableNetworks, host Host, system string, removeHNS func(name string) (bool, error)) (removed []string, err error) {
	all, err := engine.Networks(ctx)
	errs := []error{err}
	for _, n := range all {
		// A Windows engine loses labels when it starts, but keeps the name.
		if n.Labels[LabelPods] == "" && (system != "windows" || n.Name != defaultName) {
			continue
		}
		if err := engine.RemoveNetwork(ctx, n.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "network "+n.Name+" of the engine")
	}
	errs = append(errs, host.Apply(ctx, State{}))
	if system != "windows" {
		return removed, errors.Join(errs...)
	}
	for _, name := range []string{defaultName, vxlan.DeviceName(true)} {
		gone, err := removeHNS(name)
		errs = append(errs, err)
		if gone {
			removed = append(removed, "network "+name+" of HNS")
		}
	}
	return removed, errors.Join(errs...)
}
