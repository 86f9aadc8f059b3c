package network

import (
	"context"
	"fmt"
)

// planExternal plans that pods join an existing network of the engine.
func planExternal(cfg Config, _ Facts) (State, error) {
	if cfg.External == "" {
		return State{}, fmt.Errorf("network mode %s needs the name of an engine network in CONTAINER_NETWORK", External)
	}
	return State{Join: cfg.External, Ready: ready("pods join the engine's network %q", cfg.External)}, nil
}

// external is the Maker of mode external. It creates nothing.
type external struct {
	plain
	engine    Engine
	announcer announcer
	repairer  repairer
}

func newExternal(s shared) Maker {
	return &external{engine: s.Engine, announcer: announcer{s.Node}, repairer: newRepairer(s)}
}

// Make implements Maker.
func (e *external) Make(ctx context.Context, in Input) (Made, error) {
	networks, err := e.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	found := named(networks, in.State.Join)
	if found == nil {
		return Made{}, refuse(noNetwork, fmt.Errorf("the engine has no network %q (CONTAINER_NETWORK)", in.State.Join))
	}
	if err := e.announcer.announce(ctx, in.Annotations, in.State); err != nil { // removes tunnels of a former mode
		return Made{}, err
	}
	return Made{State: in.State, Found: found}, nil
}

// Reconnect implements Maker.
func (e *external) Reconnect(ctx context.Context, made Made) error {
	return reconnect(ctx, e.repairer, made)
}
