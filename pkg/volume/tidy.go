package volume

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// After an error Tidy waits FirstTidy, then twice as long each time, but no longer than LastTidy.
const (
	FirstTidy = 10 * time.Second
	LastTidy  = 5 * time.Minute
)

// Tidy has a kind undo what no pod needs, now and when again receives, until ctx ends. After an error it tries again.
func Tidy(ctx context.Context, kind string, again <-chan struct{}, undo func(context.Context) error) {
	wait := FirstTidy
	for {
		err := undo(ctx)
		var retry <-chan time.Time
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot undo all volumes that no pod uses; trying again", "kind", kind, "after", wait)
			retry, wait = time.After(wait), min(2*wait, LastTidy)
		} else {
			wait = FirstTidy
		}
		select {
		case <-retry:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}
