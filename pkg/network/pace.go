package network

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/wake"
)

const (
	recheck    = 30 * time.Second
	firstRetry = time.Second
)

// recheckOld is the interval between comparisons on a host whose HNS does not notify: Windows before firstToNotify, the build of Server 2019.
const (
	recheckOld    = 5 * time.Second
	firstToNotify = 17763
)

// minInterval is the minimum interval between two comparisons, however many hints arrive.
const minInterval = time.Second

// interval is the interval between comparisons without hints: shorter if HNS does not notify.
func interval(p pod.Platform) time.Duration {
	if p.OS == "windows" && p.Build < firstToNotify {
		return recheckOld
	}
	return recheck
}

// pace decides when to compare again. Only one goroutine uses it.
type pace struct {
	clock   clock.Clock
	timer   clock.Timer
	wake    wake.Signal // compare now
	hints   wake.Signal // others may have changed something
	every   time.Duration
	backoff wait.Backoff
	// reapply restores what the system lost. It is cheaper than a comparison.
	reapply func(context.Context)
}

func newPace(c clock.Clock, signal, hints wake.Signal, every time.Duration, reapply func(context.Context)) *pace {
	p := &pace{clock: c, timer: c.NewTimer(every), wake: signal, hints: hints, every: every, reapply: reapply}
	p.reset()
	return p
}

func (p *pace) reset() {
	p.backoff = wait.Backoff{Duration: firstRetry, Factor: 2, Steps: 32, Cap: p.every}
}

// next returns how long to wait after a comparison that ended with err.
func (p *pace) next(err error) time.Duration {
	var soon *Pending
	switch {
	case err == nil:
		p.reset()
		return p.every
	case errors.As(err, &soon):
		p.reset()
		return soon.In
	}
	return p.backoff.Step()
}

// wait returns when it is time to compare again, at the latest after that long; it returns an error when ctx has ended. compared is when the last
// comparison ended. Changes by others are repaired immediately: by a comparison or, within minInterval after the last, first by reapply. So a host
// that is damaged repeatedly is never without network for long.
func (p *pace) wait(ctx context.Context, compared time.Time, after time.Duration) error {
	p.timer.Reset(after)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
			return nil
		case <-p.timer.C():
			return nil
		case <-p.hints:
		}
		begin := p.clock.Now()
		if begin.Sub(compared) >= minInterval {
			return nil
		}
		p.reapply(ctx)
		rest := p.clock.Since(begin) // as long as the repair took, so that repair uses at most half of the time
		left := minInterval - p.clock.Since(compared)
		if left <= 0 {
			return nil
		}
		if due, err := p.pause(ctx, min(rest, left)); err != nil || due {
			return err
		}
		if rest >= left {
			return nil
		}
		p.timer.Reset(left - rest)
	}
}

// pause waits that long; due: it was woken before.
func (p *pace) pause(ctx context.Context, d time.Duration) (due bool, err error) {
	p.timer.Reset(d)
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-p.wake:
		return true, nil
	case <-p.timer.C():
		return false, nil
	}
}
