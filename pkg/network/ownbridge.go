package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/pod"
)

// schema27 is the first Server build whose HNS can assign a network's gateway address to an endpoint: DoNotReserveGatewayAddress is new in schema
// 2.7, and Server 2022 has 2.11 (Microsoft, "HcnSchema").
const schema27 = 20348

// ownsBridge says whether we create the pods' endpoints on an l2bridge network: its pods need another gateway than the network's, which the engine's
// endpoints would have (moby libnetwork/drivers/windows, CreateEndpoint).
func (cfg Config) ownsBridge() bool { return cfg.kind() == L2Bridge && cfg.Platform.Build < schema27 }

// ownBridge is the Maker of an l2bridge network of HNS with endpoints of ours, as win-bridge created them for dockershim.
type ownBridge struct {
	cfg       Config
	engine    Engine
	host      Host
	windows   Windows
	announcer announcer
	uplink    *uplinkGuard
	ownEndpoints
	left bool // the network of mode overlay was removed
}

func newOwnBridge(s shared) Maker {
	return &ownBridge{cfg: s.cfg, engine: s.Engine, host: s.Host, windows: s.Windows, announcer: announcer{s.Node}, uplink: newUplinkGuard(s, true),
		ownEndpoints: newOwnEndpoints(s, s.cfg.EngineName())}
}

// Make implements Maker.
func (o *ownBridge) Make(ctx context.Context, in Input) (Made, error) {
	s := in.State
	networks, err := o.engine.Networks(ctx)
	if err != nil {
		return Made{}, err
	}
	if o.uplink.lost != nil {
		return Made{}, refuse(addressLost, o.uplink.lost)
	}
	if err := o.leave(ctx, networks); err != nil {
		return Made{}, err
	}
	made := Made{Warning: overlapping(s, networks, in.Surroundings, o.cfg.Platform)}
	if wrong := lacksAdapter(o.cfg, in.Surroundings); wrong.Reason != "" {
		return Made{}, refuse(wrong.Reason, errors.New(wrong.Message))
	}
	if err := o.uplink.note(s.Bridge.Subnet); err != nil {
		return made, err
	}
	if err := o.makeNetwork(*s.Bridge); err != nil {
		return made, err
	}
	remove := func(context.Context) error { return o.windows.RemoveBridge(s.Bridge.Name) }
	if err := errors.Join(o.uplink.verify(ctx, s.Bridge.Name, remove), o.host.Apply(ctx, s), o.announcer.announce(ctx, in.Annotations, s)); err != nil {
		return made, err
	}
	o.endpoints.Use(s.Bridge.Pods())
	if err := o.endpoints.Load(ctx); err != nil {
		return made, err
	}
	made.State = s
	return made, nil
}

// Reapply implements Maker.
func (o *ownBridge) Reapply(ctx context.Context, s State) error { return o.host.Apply(ctx, s) }

// leave removes the networks of former modes and kinds. The engine may have adopted ours at its start; leave keeps that one.
func (o *ownBridge) leave(ctx context.Context, networks []pod.EngineNetwork) error {
	if err := leaveEngine(ctx, o.engine, networks, o.cfg.EngineName(), string(L2Bridge)); err != nil || o.left {
		return err
	}
	err := removeOverlay(o.windows)
	o.left = err == nil
	return err
}

// makeNetwork creates the network in HNS. It replaces one that differs unless pods use it.
func (o *ownBridge) makeNetwork(want hns.Bridge) error {
	_, err := o.windows.MakeBridge(want)
	if !errors.Is(err, hns.ErrDiffers) {
		return err
	}
	if used := leaveBridge(o.windows, want.Name); used != nil {
		return refuse(rangeChanged, errors.Join(err, used))
	}
	return fmt.Errorf("%w; it was removed and is being recreated", err)
}

// leaveBridge removes an l2bridge network of ours unless pods have endpoints on it.
func leaveBridge(windows Windows, name string) error {
	return removeUnused(windows, name, windows.RemoveBridge)
}
