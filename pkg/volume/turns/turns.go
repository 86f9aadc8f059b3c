// Package turns lets one goroutine work on a volume at a time, and returns in time where a driver, a program or the kernel hangs.
//
//	Enter(ctx, volume)     -> waits, then a Turn: Do(ctx, call), Do(ctx, call), Release
//	EnterIdle(ctx, volume) -> the turn if no one wants it, until someone does
//	Do(ctx, volume, work)  -> Enter, one call, Release, with a limit for the wait
//
// A call that its caller gives up keeps the turn until it has ended, so that nothing else is done with the volume meanwhile.
package turns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/winkube/winkube/pkg/wake"
)

var (
	// ErrBusy says that work on a volume has not ended in time and continues.
	ErrBusy = errors.New("still busy")
	// ErrWanted ends the context of a holder that EnterIdle let in.
	ErrWanted = errors.New("the volume is wanted for something else")
)

// Turns are those of all volumes of one kind. The zero value with Limit set is ready for use; Do also needs Wait.
type Turns[K comparable] struct {
	Wait  time.Duration // Do returns after Wait at the latest
	Limit time.Duration // the context of a call ends after Limit

	mu   sync.Mutex
	open map[K]*gate
}

// gate is the access to one volume while anyone holds or wants its turn.
type gate struct {
	turn  wake.Signal // sent while no one has the turn
	users int         // holder and waiters
	yield func()      // asks the holder to leave; nil: it does not leave early
}

// Turn is held by the one that works on a volume. One goroutine uses it.
type Turn struct {
	limit time.Duration
	leave func()
	last  chan struct{} // closed when the last call has ended; nil: there was none
}

// Enter waits for the turn until ctx ends. The caller must release the Turn.
func (t *Turns[K]) Enter(ctx context.Context, k K) (*Turn, error) {
	t.mu.Lock()
	of := t.open[k]
	if of == nil {
		of = t.make(k)
		of.turn.Send()
	}
	of.users++
	if of.yield != nil {
		of.yield()
	}
	t.mu.Unlock()
	select {
	case <-of.turn:
		return &Turn{limit: t.Limit, leave: func() { of.turn.Send(); t.out(k, of) }}, nil
	case <-ctx.Done():
		t.out(k, of)
		return nil, context.Cause(ctx)
	}
}

// make adds a gate whose turn is taken. The lock is held.
func (t *Turns[K]) make(k K) *gate {
	if t.open == nil {
		t.open = map[K]*gate{}
	}
	of := &gate{turn: wake.New()}
	t.open[k] = of
	return of
}

func (t *Turns[K]) out(k K, of *gate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(t.open, k)
	}
}

// EnterIdle takes the turn if no one else holds or wants it; otherwise idle is false. The context inside ends with ErrWanted when another wants
// the turn. The caller then calls leave.
func (t *Turns[K]) EnterIdle(ctx context.Context, k K) (inside context.Context, leave func(), idle bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[k] != nil {
		return nil, nil, false
	}
	inside, cancel := context.WithCancelCause(ctx)
	of := t.make(k)
	of.users, of.yield = 1, func() { cancel(ErrWanted) }
	return inside, func() {
		cancel(nil)
		t.mu.Lock()
		of.yield = nil
		t.mu.Unlock()
		of.turn.Send()
		t.out(k, of)
	}, true
}

// Do runs a call, whose context ends after Turns.Limit and not with ctx. It returns when the call has ended or ctx has. In the latter case the
// call continues and keeps the turn.
func (h *Turn) Do(ctx context.Context, call func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ended, result := make(chan struct{}), make(chan error, 1)
	h.last = ended
	// Not waited for: a call that hangs would block the pod's worker, and the end of the agent, until the limit.
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), h.limit, fmt.Errorf("not done after %s", h.limit))
		defer cancel()
		result <- call(ctx)
	}()
	select {
	case err := <-result:
		<-ended
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Release gives the turn to the next: now, or when a call that was given up has ended.
func (h *Turn) Release() {
	if h.last == nil {
		h.leave()
		return
	}
	select {
	case <-h.last:
		h.leave()
	default:
		go func() { // the next waits for the call, and the caller does not
			<-h.last
			h.leave()
		}()
	}
}

// errWait ends the context of Do after Wait.
var errWait = errors.New("waited long enough")

// Do runs work in a turn that has no other calls. It returns when work has ended, ctx has, or Wait has passed; in the last two cases work
// that has begun continues. The error wraps ErrBusy when Wait has passed.
func (t *Turns[K]) Do(ctx context.Context, k K, work func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, t.Wait, errWait)
	defer cancel()
	turn, err := t.Enter(ctx, k)
	if errors.Is(err, errWait) {
		return fmt.Errorf("%w with an earlier call after %s; trying again", ErrBusy, t.Wait)
	}
	if err != nil {
		return err
	}
	defer turn.Release()
	if err = turn.Do(ctx, work); errors.Is(err, errWait) {
		return fmt.Errorf("%w after %s; waiting for its end", ErrBusy, t.Wait)
	}
	return err
}
