package csi

import (
	"context"

	"github.com/winkube/winkube/pkg/volume"
)

// Run unstages volumes that no pod has a record of, until ctx ends: those of earlier runs of the agent or of upstream's kubelet, and those that the
// driver refused to unstage when their last pod ended. Parts.Again has it try again immediately.
func (k *Kind) Run(ctx context.Context) error {
	volume.Tidy(ctx, k.Name(), k.again, k.orphans)
	return nil
}
