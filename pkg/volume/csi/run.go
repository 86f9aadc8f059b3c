package csi

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	firstLook = 10 * time.Second // drivers register after the agent has started
	lastLook  = 5 * time.Minute
)

// Run unstages volumes of earlier runs of the agent, or of upstream's kubelet, that no pod has a record of. It returns when none is left or ctx
// has ended. It waits for missing drivers.
func (k *Kind) Run(ctx context.Context) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		left, err := k.orphans(ctx)
		if ctx.Err() != nil || err == nil {
			return nil //nolint:nilerr // ctx has ended
		}
		klog.ErrorS(err, "Cannot unstage all CSI volumes that no pod uses; trying again", "volumes", left, "after", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}
