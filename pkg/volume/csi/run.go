package csi

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/winkube/winkube/pkg/volume"
)

// Run unstages volumes that no pod has a record of, until ctx ends: those of earlier runs of the agent or of upstream's kubelet, and those that the
// driver refused to unstage when their last pod ended. A registration has it try again immediately.
func (k *Kind) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			select {
			case <-k.parts.Joined:
				k.again.Send()
			case <-ctx.Done():
				return nil
			}
		}
	})
	group.Go(func() error {
		volume.Tidy(ctx, k.Name(), k.again, k.orphans)
		return nil
	})
	return group.Wait()
}
