package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
)

// engineNetwork decides whether to keep the engine's network.
type engineNetwork struct {
	engine Engine
	kept   string // ID of a network that differs and is in use, as logged
}

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

// Ours says whether a network of the engine is the pods' network called name: by our label or, on Windows, because it is the HNS network of that
// name. Docker before 27.5 loses labels at each start, and adopts our HNS network without labels; both keep HNS' name in an option (moby
// daemon/daemon_windows.go initNetworkController, moby/moby 25009ed5c0). For a network that others create in Docker, that option is its ID.
func Ours(n pod.EngineNetwork, name string) bool {
	return n.Labels[LabelPods] != "" || n.Name == name && n.Options[optionName] == name
}

// leaveEngine removes the engine's network of a former mode or kind, unless it has the wanted driver: an adapter carries networks of only one kind
// (microsoft/SDN#300). The engine refuses while containers use it.
func leaveEngine(ctx context.Context, engine Engine, networks []pod.EngineNetwork, name, driver string) error {
	for _, n := range networks {
		if !Ours(n, name) || n.Driver == driver {
			continue
		}
		if err := engine.RemoveNetwork(ctx, n.Name); err != nil {
			return fmt.Errorf("pods run on the engine's network %q, which conflicts with the one of this mode; drain this node, and the kubelet will remove it: %w", n.Name, err)
		}
	}
	return nil
}

// existing returns the engine network of want's name if it can or must be used; nil: want must be created. It first tries to remove one of ours that
// differs, which the engine does only when no container is connected to it.
func (e *engineNetwork) existing(ctx context.Context, all []pod.EngineNetwork, want *pod.EngineNetwork) (*pod.EngineNetwork, error) {
	have := named(all, want.Name)
	if have == nil {
		return nil, nil
	}
	subnets := SameSubnets(have.Subnets, want.Subnets)
	options := true
	for k, v := range want.Options {
		options = options && (have.Options[k] == v || k == optionInterface || k == optionNoNAT && extends(v, have.Options[k])) // the adapter matters only at creation
	}
	if subnets && options && have.Driver == want.Driver {
		return have, nil
	}
	if id := have.Options[optionHNS]; !Ours(*have, want.Name) && (id == "" || hns.IDOf(id) != hns.IDOf(want.Options[optionHNS])) {
		return nil, fmt.Errorf("the engine has a network %q that this program did not make; remove it or choose another name", have.Name)
	}
	if err := e.engine.RemoveNetwork(ctx, have.Name); err != nil {
		if have.Driver != want.Driver {
			return nil, fmt.Errorf("the engine's network %q has driver %s instead of %s; drain this node, and the kubelet will recreate it: %w", have.Name, have.Driver, want.Driver, err)
		}
		if subnets && e.kept != have.ID {
			klog.InfoS("The engine's network lacks options that a new one gets; it is recreated once no pod uses it. Drain or reboot this node when convenient",
				"network", have.Name, "has", have.Options, "new", want.Options)
			e.kept = have.ID
		}
		return have, nil
	}
	if want.Options[optionHNS] != "" { // this has removed the HNS network too
		return nil, fmt.Errorf("the engine's network %q was removed and is being recreated", have.Name)
	}
	return nil, nil
}
