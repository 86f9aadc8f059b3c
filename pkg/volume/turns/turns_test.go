package turns_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/winkube/winkube/pkg/volume/turns"
)

// TestOneAtATime: work of one key never overlaps, and its errors come back.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Wait: time.Hour, Limit: time.Hour}
		inside, most, wrong := 0, 0, errors.New("wrong")
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				err := all.Do(t.Context(), "v", func(context.Context) error {
					inside++
					most = max(most, inside)
					time.Sleep(time.Second) // of the bubble
					inside--
					return wrong
				})
				if !errors.Is(err, wrong) {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if most != 1 {
			t.Errorf("%d at a time", most)
		}
	})
}

// TestHungWork: who waits gets an answer, other volumes go on, and nothing is done for the volume before the hung work has ended.
func TestHungWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Wait: time.Minute, Limit: 10 * time.Minute}
		begin, ended := time.Now(), make(chan time.Duration, 1)
		hang := func(ctx context.Context) error {
			<-ctx.Done() // what it runs is killed at the limit
			time.Sleep(time.Second)
			ended <- time.Since(begin)
			return context.Cause(ctx)
		}
		if err := all.Do(t.Context(), "v", hang); !errors.Is(err, turns.ErrBusy) || time.Since(begin) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if err := all.Do(t.Context(), "v", func(context.Context) error { t.Error("overlaps"); return nil }); !errors.Is(err, turns.ErrBusy) {
			t.Error(err)
		}
		if err := all.Do(t.Context(), "other", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		gone, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the pod was deleted")
		time.AfterFunc(time.Second, func() { cancel(left) })
		if err := all.Do(gone, "v", func(context.Context) error { return nil }); !errors.Is(err, left) {
			t.Error(err)
		}
		if after := <-ended; after != 10*time.Minute+time.Second {
			t.Errorf("the hung work ended after %s", after)
		}
		synctest.Wait()
		if err := all.Do(t.Context(), "v", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := all.Do(gone, "v", func(context.Context) error { t.Error("runs for a pod that is gone"); return nil }); !errors.Is(err, left) {
			t.Error(err)
		}
	})
}

// TestSeveralCalls: a turn keeps others out until its last call has ended, also one that the caller has given up.
func TestSeveralCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Limit: time.Hour}
		turn, err := all.Enter(t.Context(), "v")
		if err != nil {
			t.Fatal(err)
		}
		begin, wrong := time.Now(), errors.New("wrong")
		entered := make(chan time.Duration, 1)
		go func() {
			next, err := all.Enter(t.Context(), "v")
			if err != nil {
				t.Error(err)
				return
			}
			entered <- time.Since(begin)
			next.Release()
		}()
		slow := func(context.Context) error { time.Sleep(10 * time.Second); return wrong }
		if err := turn.Do(t.Context(), slow); !errors.Is(err, wrong) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turn.Do(ctx, slow); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := turn.Do(ctx, func(context.Context) error { t.Error("runs for a caller that has left"); return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := all.Enter(ctx, "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		turn.Release()
		if after := <-entered; after != 20*time.Second {
			t.Errorf("the next entered after %s, want 20 s", after)
		}
	})
}

// TestLimit: the context of a call ends after Limit and says so; its caller's end does not end it.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Limit: time.Minute}
		turn, err := all.Enter(t.Context(), "v")
		if err != nil {
			t.Fatal(err)
		}
		defer turn.Release()
		begin := time.Now()
		err = turn.Do(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return errors.Join(ctx.Err(), context.Cause(ctx))
		})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done after 1m0s") || time.Since(begin) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}

// TestIdle: a holder that only uses idle time enters only where no one holds or wants the turn, and leaves for whoever comes.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Limit: time.Hour}
		inside, leave, idle := all.EnterIdle(t.Context(), "v")
		if !idle {
			t.Fatal("no one has the turn")
		}
		if _, _, idle := all.EnterIdle(t.Context(), "v"); idle {
			t.Error("entered twice")
		}
		if _, leave, idle := all.EnterIdle(t.Context(), "other"); !idle {
			t.Error("waits for another volume")
		} else {
			leave()
		}
		begin := time.Now()
		go func() {
			<-inside.Done()
			time.Sleep(time.Second)
			leave()
		}()
		turn, err := all.Enter(t.Context(), "v")
		if err != nil || !errors.Is(context.Cause(inside), turns.ErrWanted) || time.Since(begin) != time.Second {
			t.Fatalf("%v, %v after %s", err, context.Cause(inside), time.Since(begin))
		}
		if _, _, idle := all.EnterIdle(t.Context(), "v"); idle {
			t.Error("entered while another has the turn")
		}
		turn.Release()
		if _, leave, idle := all.EnterIdle(t.Context(), "v"); !idle {
			t.Error("the turn is free")
		} else {
			leave()
		}
	})
}

// TestLeaving: the work of a caller that has left goes on.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := turns.Turns[string]{Wait: time.Minute, Limit: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := false
		err := all.Do(ctx, "v", func(ctx context.Context) error {
			time.Sleep(30 * time.Second)
			done = ctx.Err() == nil
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := all.Do(t.Context(), "v", func(context.Context) error { return nil }); err != nil || !done {
			t.Errorf("%v, done: %t", err, done)
		}
	})
}
