package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/host"
)

// program is one that measures its only volume.
type program struct {
	name  string
	calls atomic.Int32
	held  chan struct{} // nil: it answers immediately
	err   error
	disk  host.Disk
}

func (p *program) Program() string { return p.name }

func (p *program) Volume() string { return "v" }

func (p *program) Measure(ctx context.Context) (host.Disk, error) {
	p.calls.Add(1)
	if _, bounded := ctx.Deadline(); !bounded {
		return host.Disk{}, errors.New("no deadline")
	}
	if p.held != nil {
		<-p.held
	}
	return p.disk, p.err
}

func (p *program) Health() *Health { return &Health{Message: p.name} }

// lookAt measures a pod with a volume of each program.
func lookAt(t *testing.T, m *Meter, patience time.Duration, all ...*program) Pod {
	t.Helper()
	s := Subject{UID: "u"}
	for _, p := range all {
		s.Places = append(s.Places, Place{Volume: p.name, Own: true, Source: p})
	}
	return m.Pods(t.Context(), Terms{Patience: patience}, []Subject{s})["u"]
}

// TestSource: a program is asked once a minute at most; what it cannot answer now leaves the last figure, and a volume that is gone has none.
func TestSource(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1e9, 0))
	m := NewMeter(NewCrew(clock, 1), Parts{})
	p := &program{name: "p", disk: host.Disk{Capacity: 10, Used: 4}}
	for i, step := range []struct {
		after time.Duration
		err   error
		used  uint64
		want  string
	}{
		{0, nil, 4, "1 call, 4 used"},
		{programAge - time.Second, nil, 5, "1 call, 4 used"},
		{time.Second, nil, 5, "2 call, 5 used"},
		{programAge, ErrBusy, 6, "3 call, 5 used"},
		{time.Second, errors.New("no"), 7, "4 call, 5 used"},
		{time.Second, fs.ErrNotExist, 7, "5 call, none"},
		{time.Second, nil, 8, "6 call, 8 used"},
	} {
		clock.Step(step.after)
		p.err, p.disk.Used = step.err, step.used
		got := lookAt(t, m, time.Hour, p)
		text := fmt.Sprintf("%d call, none", p.calls.Load())
		if len(got.Volumes) > 0 {
			v := got.Volumes[0]
			text = fmt.Sprintf("%d call, %d used", p.calls.Load(), v.Used)
			if v.Capacity != 10 || v.Health.Message != "p" {
				t.Errorf("step %d: %+v", i, v)
			}
		}
		if text != step.want {
			t.Errorf("step %d: %s, want %s", i, text, step.want)
		}
	}
}

// timers is a clock that says for how long each timer is.
type timers struct {
	*testingclock.FakeClock
	made chan time.Duration
}

func newTimers() timers {
	return timers{testingclock.NewFakeClock(time.Unix(1e9, 0)), make(chan time.Duration, 100)}
}

func (c timers) NewTimer(d time.Duration) clock.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.made <- d
	return timer
}

// measured is closed when the measurement of the program's volume has ended; nil: there is none.
func measured(m *Meter, program string) <-chan struct{} {
	c := m.program(program)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.tasks["volume v of "+program]; t != nil && t.running != nil {
		return t.running.done
	}
	return nil
}

// awaited waits until someone waits for programs, and the other one has answered.
func (c timers) awaited(m *Meter, other string) {
	for d := range c.made {
		if d == programPatience {
			break
		}
	}
	if done := measured(m, other); done != nil {
		<-done
	}
}

// TestSourceHangs: neither another program nor files wait for one that hangs, which is asked no second time meanwhile, and whose figure comes later.
func TestSourceHangs(t *testing.T) {
	clock := newTimers()
	m := NewMeter(NewCrew(clock, 1), Parts{})
	stuck, other := &program{name: "stuck", held: make(chan struct{}), disk: host.Disk{Used: 1}}, &program{name: "other", disk: host.Disk{Used: 2}}
	dir := t.TempDir()
	seen := make(chan Pod)
	measure := func() {
		s := Subject{UID: "u", Places: []Place{{Volume: "stuck", Own: true, Source: stuck}, {Volume: "other", Own: true, Source: other}, {Volume: "files", Path: dir}}}
		seen <- m.Pods(t.Context(), Terms{Patience: time.Hour}, []Subject{s})["u"]
	}
	go measure()
	clock.awaited(m, "other")
	clock.Step(programPatience)
	check := func(got Pod, want string) {
		t.Helper()
		text := ""
		for _, v := range got.Volumes {
			if v.Volume == "files" {
				v.Used = 0 // what a directory takes differs between file systems
			}
			text += fmt.Sprint(v.Volume, " ", v.Used, " ", v.Late, "; ")
		}
		if text != want {
			t.Errorf("%s, want %s", text, want)
		}
		if len(got.Late) > 0 {
			t.Errorf("late: %+v; no limit covers a program's volume", got.Late)
		}
	}
	check(<-seen, "stuck 0 true; other 2 false; files 0 false; ")
	go measure()
	check(<-seen, "stuck 0 true; other 2 false; files 0 false; ") // without waiting
	if n := stuck.calls.Load(); n != 1 {
		t.Errorf("%d calls, want the one that hangs", n)
	}
	if got := m.State(); got.Running != 1 || got.Late != 1 {
		t.Errorf("%+v, want the one that is late", got)
	}
	ended := measured(m, "stuck")
	close(stuck.held)
	<-ended
	go measure()
	check(<-seen, "stuck 1 false; other 2 false; files 0 false; ")
}

// TestSlowSourceIsLoggedOnce: a program that is slow each minute has one line in the log, until it was in time once.
func TestSlowSourceIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	t.Cleanup(func() {
		klog.SetOutput(os.Stderr)
		klog.LogToStderr(true)
	})
	clock := newTimers()
	m := NewMeter(NewCrew(clock, 1), Parts{})
	p := &program{name: "p"}
	round := func(slow bool) {
		clock.Step(programAge)
		for len(clock.made) > 0 {
			<-clock.made // of the round before
		}
		p.held = nil
		if slow {
			p.held = make(chan struct{})
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			lookAt(t, m, time.Hour, p)
		}()
		if !slow {
			<-done
			return
		}
		clock.awaited(m, "none")
		clock.Step(programPatience)
		<-done
		ended := measured(m, "p")
		for c := m.program("p"); c.State().Hung == 0; {
			clock.Step(hangs) // until the crew has seen that it works on it
			time.Sleep(time.Millisecond)
		}
		close(p.held)
		<-ended
	}
	for i, want := range []struct{ late, hung, over int }{{1, 1, 0}, {1, 1, 0}, {1, 1, 1}, {2, 2, 1}} {
		round(i != 2)
		klog.Flush()
		text := log.String()
		late, hung, over := strings.Count(text, "Measuring is slow"), strings.Count(text, "Measuring hangs"), strings.Count(text, "Measuring no longer hangs")
		if late != want.late || hung != want.hung || over != want.over {
			t.Errorf("after round %d: %d, %d and %d lines, want %+v:\n%s", i, late, hung, over, want, text)
		}
	}
	if got := m.State(); got.Late != 3 || got.Running != 0 || got.Hung != 0 {
		t.Errorf("%+v, want 3 late", got)
	}
}

// TestProgramsAreForgotten: programs whose volumes no one asks for any more leave nothing but their number of late measurements.
func TestProgramsAreForgotten(t *testing.T) {
	clock := newTimers()
	m := NewMeter(NewCrew(clock, 1), Parts{})
	stuck, brief := &program{name: "stuck", held: make(chan struct{})}, &program{name: "brief"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lookAt(t, m, time.Hour, stuck, brief)
	}()
	clock.awaited(m, "brief")
	clock.Step(programPatience)
	<-done
	left := func(want ...string) {
		t.Helper()
		lookAt(t, m, time.Hour)
		if got := slices.Sorted(maps.Keys(m.programs)); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	left("brief", "stuck")
	clock.Step(forgotten)
	left("stuck") // which still measures
	if n := m.State().Running; n != 1 {
		t.Errorf("%d measurements run", n)
	}
	ended := measured(m, "stuck")
	close(stuck.held)
	<-ended
	clock.Step(forgotten)
	left()
	if got := m.State(); got.Late != 1 || got.Running != 0 {
		t.Errorf("%+v, want 1 late", got)
	}
	if got := lookAt(t, m, time.Hour, brief); len(got.Volumes) != 1 || brief.calls.Load() != 2 {
		t.Errorf("%+v after %d calls", got, brief.calls.Load())
	}
}
