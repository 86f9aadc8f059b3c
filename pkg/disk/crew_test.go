package disk

import (
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/host"
)

// at is a measurement that immediately finds this many bytes.
func at(bytes uint64) Pass {
	return func(func(host.Disk) bool) (host.Disk, bool, error) { return host.Disk{Used: bytes}, true, nil }
}

// TestHung: a hanging measurement is started once, is reported, and delays no other, although the crew has one member.
func TestHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCrew(clock.RealClock{}, 1)
		release, begun := make(chan struct{}), atomic.Int32{}
		asks := []Ask{{"frozen", func() Pass {
			begun.Add(1)
			return func(func(host.Disk) bool) (host.Disk, bool, error) {
				<-release
				return host.Disk{Used: 7}, true, nil
			}
		}}, {"sound", func() Pass { return at(5) }}}
		terms := Terms{Patience: 10 * time.Second}
		got := c.Look(t.Context(), terms, asks)
		if !got[0].Late || !got[0].At.IsZero() || got[1].Late || got[1].Used != 5 {
			t.Errorf("%+v", got)
		}
		if s := c.State(); s != (State{Running: 1, Hung: 1, Late: 1}) {
			t.Errorf("state %+v", s)
		}
		for range 3 {
			before := time.Now()
			if got := c.Look(t.Context(), terms, asks); !got[0].Late || got[1].At.Before(before) || time.Since(before) != 0 {
				t.Errorf("after %s: %+v", time.Since(before), got)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("begun %d times", n)
		}
		close(release)
		synctest.Wait()
		terms.Age = time.Hour
		if got := c.Look(t.Context(), terms, asks); got[0].Late || got[0].Used != 7 {
			t.Errorf("released: %+v", got[0])
		}
		if s := c.State(); s != (State{Late: 1}) || c.free != 1 {
			t.Errorf("released: state %+v, %d free", s, c.free)
		}
	})
}

// TestTurns: a request after a large tree does not wait for its end, and the large tree continues where it was.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCrew(clock.RealClock{}, 1)
		var log []string
		large := Ask{"large", func() Pass {
			n := uint64(0)
			return func(soFar func(host.Disk) bool) (host.Disk, bool, error) {
				log = append(log, "large")
				for n < 30 {
					n++
					time.Sleep(slice / 10)
					if soFar(host.Disk{Used: n}) {
						return host.Disk{Used: n}, false, nil
					}
				}
				return host.Disk{Used: n}, true, nil
			}
		}}
		small := Ask{"small", func() Pass {
			return func(func(host.Disk) bool) (host.Disk, bool, error) {
				log = append(log, "small")
				return host.Disk{Used: 1}, true, nil
			}
		}}
		got := c.Look(t.Context(), Terms{Patience: slice + slice/20}, []Ask{large, small})
		if !got[0].Late || got[0].Used != 10 || got[1].Late || got[1].Used != 1 {
			t.Errorf("%+v", got)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		if got := c.Look(t.Context(), Terms{Age: time.Minute}, []Ask{large}); got[0].Late || got[0].Used != 30 {
			t.Errorf("%+v", got)
		}
		if want := []string{"large", "small", "large", "large", "large"}; !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
	})
}

// TestLate: a late measurement counts as its last figure, or as the current count if that is more.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCrew(clock.RealClock{}, 2)
		pass, more, done := at(100), make(chan uint64), make(chan struct{})
		ask := []Ask{{"x", func() Pass { return pass }}}
		first := c.Look(t.Context(), Terms{Patience: time.Second}, ask)[0]
		pass = func(soFar func(host.Disk) bool) (host.Disk, bool, error) {
			for n := range more {
				soFar(host.Disk{Used: n})
			}
			close(done)
			return host.Disk{Used: 60}, true, nil
		}
		time.Sleep(time.Second)
		for _, step := range []struct{ soFar, want uint64 }{{50, 100}, {300, 300}} {
			go c.Look(t.Context(), Terms{Patience: time.Second}, ask)
			more <- step.soFar
			synctest.Wait()
			got := c.Look(t.Context(), Terms{Patience: time.Second}, ask)[0]
			if !got.Late || got.Used != step.want || !got.At.Equal(first.At) {
				t.Errorf("%d so far: %+v, want %d late", step.soFar, got, step.want)
			}
		}
		close(more)
		<-done
		synctest.Wait()
		if got := c.Look(t.Context(), Terms{Age: time.Minute}, ask)[0]; got.Late || got.Used != 60 {
			t.Errorf("at its end: %+v", got)
		}
	})
}

// TestRest: slow measurements are repeated less often, unless they are urgent.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCrew(clock.RealClock{}, 1)
		begun := 0
		ask := []Ask{{"x", func() Pass {
			begun++
			return func(func(host.Disk) bool) (host.Disk, bool, error) {
				time.Sleep(2 * time.Second)
				return host.Disk{Used: 1}, true, nil
			}
		}}}
		terms := Terms{Patience: time.Minute}
		c.Look(t.Context(), terms, ask)
		time.Sleep(rest*2*time.Second - time.Second)
		if got := c.Look(t.Context(), terms, ask)[0]; begun != 1 || got.Late || got.Used != 1 {
			t.Errorf("while it rests: begun %d times, %+v", begun, got)
		}
		terms.Urgent = true
		if c.Look(t.Context(), terms, ask); begun != 2 {
			t.Errorf("urgent: begun %d times", begun)
		}
		terms.Urgent = false
		time.Sleep(rest * 2 * time.Second)
		if c.Look(t.Context(), terms, ask); begun != 3 {
			t.Errorf("rested: begun %d times", begun)
		}
	})
}

// TestFails: an error keeps the last figure, a deleted tree has none, and an unused task is dropped.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCrew(clock.RealClock{}, 1)
		pass := at(3)
		look := func() Figure {
			return c.Look(t.Context(), Terms{Patience: time.Second}, []Ask{{"x", func() Pass { return pass }}})[0]
		}
		look()
		broken := errors.New("input/output error")
		pass = func(func(host.Disk) bool) (host.Disk, bool, error) { return host.Disk{}, true, broken }
		time.Sleep(time.Second)
		if got := look(); got.Used != 3 || !errors.Is(got.Err, broken) || !got.known() {
			t.Errorf("broken: %+v", got)
		}
		pass = func(func(host.Disk) bool) (host.Disk, bool, error) { return host.Disk{}, true, fs.ErrNotExist }
		time.Sleep(time.Second)
		if got := look(); got.known() {
			t.Errorf("gone: %+v", got)
		}
		time.Sleep(2 * forgotten)
		c.Look(t.Context(), Terms{}, nil)
		if len(c.tasks) != 0 {
			t.Errorf("%d are kept", len(c.tasks))
		}
	})
}
