package command

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stuck is a Runner whose programs end with their context, or never.
type stuck struct {
	runs  atomic.Int32
	well  atomic.Bool
	stays chan struct{} // nil: a program exits when it is killed
}

func (s *stuck) Run(ctx context.Context, _ []byte, name string, args ...string) ([]byte, error) {
	if s.runs.Add(1); s.well.Load() {
		return []byte("ok"), nil
	}
	<-ctx.Done()
	if s.stays != nil {
		<-s.stays
	}
	return nil, failed(name, args, context.Cause(ctx))
}

// TestPatient: a hanging program costs its caller the patience only once; other programs run; it is retried after the pause.
func TestPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{}
		p := Patient(s, 5*time.Second, time.Minute)
		begin := time.Now()
		_, err := p.Run(t.Context(), nil, "nft", "-f", "-")
		if !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), `"nft -f -"`) || time.Since(begin) != 5*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		begin = time.Now()
		for range 100 {
			if _, err := p.Run(t.Context(), nil, "nft", "-f", "-"); !errors.Is(err, ErrHung) {
				t.Errorf("again: %v", err)
			}
		}
		if s.runs.Load() != 1 || time.Since(begin) != 0 {
			t.Errorf("run %d times within %s", s.runs.Load(), time.Since(begin))
		}
		s.well.Store(true)
		if out, err := p.Run(t.Context(), nil, "iptables-save"); err != nil || string(out) != "ok" {
			t.Errorf("another program: %q, %v", out, err)
		}
		time.Sleep(time.Minute)
		if out, err := p.Run(t.Context(), nil, "nft", "-f", "-"); err != nil || string(out) != "ok" {
			t.Errorf("after the pause: %q, %v", out, err)
		}
	})
}

// TestPatientWithTheUndead: even a program that survives being killed does not block callers, and is not started a second time beside itself.
func TestPatientWithTheUndead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{stays: make(chan struct{})}
		p := Patient(s, 5*time.Second, time.Minute)
		begin := time.Now()
		if _, err := p.Run(t.Context(), nil, "nft"); !errors.Is(err, ErrHung) || time.Since(begin) != 5*time.Second+waitDelay {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		time.Sleep(time.Hour)
		if _, err := p.Run(t.Context(), nil, "nft"); !errors.Is(err, ErrHung) || s.runs.Load() != 1 {
			t.Errorf("beside the first: %v, %d runs", err, s.runs.Load())
		}
		close(s.stays)
		synctest.Wait()
		s.well.Store(true)
		if _, err := p.Run(t.Context(), nil, "nft"); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}

// TestPatientWithItsCaller: if the caller gives up, the program does not count as hung.
func TestPatientWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{}
		p := Patient(s, 5*time.Second, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Run(ctx, nil, "nft"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrHung) {
			t.Errorf("%v", err)
		}
		s.well.Store(true)
		if _, err := p.Run(t.Context(), nil, "nft"); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}
