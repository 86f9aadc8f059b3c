package san

import (
	"context"
	"time"
)

// ReleaseAll is what Run does each time.
func (k *Kind) ReleaseAll(ctx context.Context) error { return k.releaseAll(ctx) }

// SetWait changes how long a pod waits for its disk.
func (k *Kind) SetWait(d time.Duration) { k.turns.Wait = d }

// SetAttachWait changes how long a pod waits for the control plane.
func (k *Kind) SetAttachWait(d time.Duration) { k.attachWait = d }
