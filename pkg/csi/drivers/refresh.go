package drivers

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// period is the nodeAllocatableUpdatePeriodSeconds of a driver; 0: it has none.
func (p *publisher) period(name string) time.Duration {
	object := p.parts.Objects.KnownCSIDriver(name)
	if object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// refreshes are the times at which each driver with a period is asked again.
func (p *publisher) refreshes() map[string]time.Time {
	all := map[string]time.Time{}
	for _, name := range p.Names() {
		period := p.period(name)
		if period <= 0 {
			delete(p.refreshed, name)
			continue
		}
		last, ok := p.refreshed[name]
		if !ok {
			last = p.parts.Clock.Now() // it was asked at its registration
			p.refreshed[name] = last
		}
		all[name] = last.Add(period)
	}
	return all
}

// refreshDue asks each driver again whose time has come.
func (p *publisher) refreshDue(ctx context.Context) {
	now := p.parts.Clock.Now()
	for name, at := range p.refreshes() {
		if now.Before(at) {
			continue
		}
		p.refreshed[name] = now
		p.running.Go(func() { // a driver that hangs holds up nothing
			if err := p.Refresh(ctx, name); err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Cannot ask a CSI driver how many volumes this node can have", "driver", name)
			}
		})
	}
}
