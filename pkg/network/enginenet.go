package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// engineNetwork finds out whether the engine's network can stay.
type engineNetwork struct{ engine Engine }

// named returns the network of that name; nil: there is none.
func named(all []pod.EngineNetwork, name string) *pod.EngineNetwork {
	if i := slices.IndexFunc(all, func(n pod.EngineNetwork) bool { return n.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// SameSubnets says whether two networks have the same ranges, in any order.
func SameSubnets(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}

// existing returns the engine network of want's name where it can or must be used; nil: want must be made. One of ours that differs is removed
// first, which the engine does only when no container is connected to it.
func (e engineNetwork) existing(ctx context.Context, all []pod.EngineNetwork, want *pod.EngineNetwork) (*pod.EngineNetwork, error) {
	have := named(all, want.Name)
	if have == nil {
		return nil, nil
	}
	subnets := SameSubnets(have.Subnets, want.Subnets)
	options := true
	for k, v := range want.Options {
		options = options && (have.Options[k] == v || k == optionInterface) // the adapter counts when the network is made
	}
	if subnets && options && have.Driver == want.Driver {
		return have, nil
	}
	// An engine of Windows that finds our network in HNS adopts it, without labels.
	ours := have.Labels[LabelPods] != "" || have.Options[optionHNS] != "" && have.Options[optionHNS] == want.Options[optionHNS]
	if !ours {
		return nil, fmt.Errorf("the engine has a network %q that this program did not make; remove it or choose another name", have.Name)
	}
	if err := e.engine.RemoveNetwork(ctx, have.Name); err != nil {
		if have.Driver != want.Driver {
			return nil, fmt.Errorf("the engine's network %q has driver %s instead of %s; drain this node, and the kubelet will recreate it: %w", have.Name, have.Driver, want.Driver, err)
		}
		if subnets {
			klog.ErrorS(err, "The pod network has other options and keeps them while pods use it", "network", have.Name)
		}
		return have, nil
	}
	if want.Options[optionHNS] != "" { // the network in HNS went with it
		return nil, fmt.Errorf("the engine's network %q was removed and is being recreated", have.Name)
	}
	return nil, nil
}
