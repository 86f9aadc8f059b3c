package disk

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/host"
)

const (
	// slice is how long a measurement runs while others wait.
	slice = 100 * time.Millisecond
	// hangs is the time without progress after which a measurement no longer occupies a place in the crew.
	hangs = 2 * time.Second
	// rest is the minimum ratio of the pause after a measurement to its duration, so that one tree uses at most a twentieth of one core.
	rest = 20
	// forgotten is the time without requests after which figures are dropped.
	forgotten = 10 * time.Minute
)

// Pass is one measurement, done in pieces: it returns done false if soFar requested a pause, and is then called again.
type Pass func(soFar func(host.Disk) (pause bool)) (result host.Disk, done bool, err error)

// Ask is a request for a figure.
type Ask struct {
	Key   string // identifies the measurement: only one per key runs at a time
	Begin func() Pass
}

// Crew runs measurements, a few at a time in turns, and caches their results. A hanging measurement gives up its place.
type Crew struct {
	clock clock.WithDelayedExecution
	rest  time.Duration // how many times as long as a measurement the pause after it is at least

	mu      sync.Mutex
	free    int // number of measurements that may start or continue now
	tasks   map[string]*task
	waiting []*task
	swept   time.Time
	hung    int
	late    uint64
}

// task is one key.
type task struct {
	key     string
	asked   time.Time
	last    Figure
	due     time.Time // not measured earlier, unless urgent
	unread  int       // number of unreadable names in it
	told    string    // last logged reason
	slow    bool      // the last measurement was late, which was logged
	hangs   bool      // the last measurement hung, which was logged
	running *running
}

// running is an unfinished measurement.
type running struct {
	pass  Pass
	begun time.Time
	work  time.Duration
	soFar host.Disk
	turn  int  // number of pieces so far
	hung  bool // now
	stuck bool // it hung once
	late  bool // a caller has waited in vain
	done  chan struct{}
}

// NewCrew returns a Crew that runs size measurements at a time.
func NewCrew(clock clock.WithDelayedExecution, size int) *Crew {
	return &Crew{clock: clock, rest: rest, free: max(size, 1), tasks: map[string]*task{}}
}

// State describes a crew's progress.
type State struct {
	Running int    // started and not finished
	Hung    int    // those of Running that hang
	Unread  int    // number of unreadable names
	Late    uint64 // number of measurements that did not end in time
}

// State returns the crew's progress.
func (c *Crew) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Hung: c.hung, Late: c.late}
	for _, t := range c.tasks {
		s.Unread += t.unread
		if t.running != nil {
			s.Running++
		}
	}
	return s
}

// Look returns the requested figures. It waits until all necessary measurements have ended, or until patience or ctx has ended. It does not wait for
// a measurement that an earlier caller already waited for in vain.
func (c *Crew) Look(ctx context.Context, terms Terms, asks []Ask) []Figure {
	tasks, wait := c.begin(terms, asks)
	c.await(ctx, terms.Patience, wait)
	return c.figures(tasks)
}

// await waits for measurements, until patience or ctx has ended.
func (c *Crew) await(ctx context.Context, patience time.Duration, wait []<-chan struct{}) {
	if len(wait) == 0 {
		return
	}
	timer := c.clock.NewTimer(patience)
	defer timer.Stop()
	for _, done := range wait {
		select {
		case <-done:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *Crew) figures(tasks []*task) []Figure {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Figure, len(tasks))
	for i, t := range tasks {
		out[i] = c.figure(t)
	}
	return out
}

// Disk measures the file system that contains path, like host.DiskUsage, for callers that cannot wait for a hanging one.
func (c *Crew) Disk(ctx context.Context, terms Terms, path string) Figure {
	return c.Look(ctx, terms, []Ask{askDisk(path)})[0]
}

func askDisk(path string) Ask {
	return Ask{Key: "file system of " + path, Begin: func() Pass {
		return func(func(host.Disk) bool) (host.Disk, bool, error) {
			d, err := host.DiskUsage(path)
			return d, true, err
		}
	}}
}

func (c *Crew) begin(terms Terms, asks []Ask) (tasks []*task, wait []<-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	c.sweep(now)
	for _, ask := range asks {
		t := c.tasks[ask.Key]
		if t == nil {
			t = &task{key: ask.Key}
			c.tasks[ask.Key] = t
		}
		t.asked = now
		tasks = append(tasks, t)
		if t.running == nil {
			if age := now.Sub(t.last.At); t.last.known() && age >= 0 && age < terms.Age || now.Before(t.due) && !terms.Urgent {
				continue
			}
			t.running = &running{pass: ask.Begin(), begun: now, done: make(chan struct{})}
			c.waiting = append(c.waiting, t)
		}
		if !t.running.late {
			wait = append(wait, t.running.done)
		}
	}
	c.dispatch()
	return tasks, wait
}

// figure returns the known figure of a task; mu is held.
func (c *Crew) figure(t *task) Figure {
	r := t.running
	if r == nil {
		return t.last
	}
	out := t.last
	out.Late, out.Err = true, nil
	out.Used, out.InodesUsed = max(out.Used, r.soFar.Used), max(out.InodesUsed, r.soFar.InodesUsed)
	if !r.late {
		r.late = true
		c.late++
		if t.slow {
			return out
		}
		t.slow = true
		klog.InfoS("Measuring is slow; using the last known figure, or the count so far if that is larger",
			"what", t.key, "since", r.begun, "bytes", out.Used, "files", out.InodesUsed)
	}
	return out
}

// sweep drops tasks from time to time; mu is held.
func (c *Crew) sweep(now time.Time) {
	if now.Sub(c.swept) < forgotten/10 {
		return
	}
	c.swept = now
	c.drop(now)
}

// unused says whether no figure was requested recently, and no measurement hangs.
func (c *Crew) unused(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(now)
	return len(c.tasks) == 0
}

// drop drops tasks without recent requests; mu is held.
func (c *Crew) drop(now time.Time) {
	for key, t := range c.tasks {
		if t.running == nil && now.Sub(t.asked) >= forgotten {
			delete(c.tasks, key)
		}
	}
}

// dispatch resumes measurements that wait for their turn; mu is held.
func (c *Crew) dispatch() {
	for c.free > 0 && len(c.waiting) > 0 {
		t := c.waiting[0]
		c.waiting[0], c.waiting = nil, c.waiting[1:]
		c.free--
		go c.work(t, t.running) // a file system can hang forever: no caller can wait for that
	}
}

// work runs a piece of t.
func (c *Crew) work(t *task, r *running) {
	begin := c.clock.Now()
	turn := r.turn // no other goroutine works on r now
	watch := c.clock.AfterFunc(hangs, func() { go c.giveUp(t, r, turn) })
	result, done, err := r.pass(func(soFar host.Disk) bool {
		c.mu.Lock()
		r.soFar = soFar
		c.mu.Unlock()
		return c.clock.Since(begin) >= slice
	})
	watch.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	r.work += c.clock.Since(begin)
	r.turn++
	if r.hung {
		c.hung--
		klog.V(2).InfoS("Measuring continues after it hung", "what", t.key)
	} else {
		c.free++
	}
	r.hung = false
	if done || err != nil {
		c.end(t, r, result, err)
	} else {
		r.soFar = result
		c.waiting = append(c.waiting, t)
	}
	c.dispatch()
}

// giveUp removes a hanging measurement from the crew.
func (c *Crew) giveUp(t *task, r *running, turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.turn != turn {
		return
	}
	r.hung, r.stuck = true, true
	c.hung++
	c.free++
	if !t.hangs {
		t.hangs = true
		klog.InfoS("Measuring hangs; continuing with other measurements", "what", t.key, "since", r.begun)
	}
	c.dispatch()
}

// end stores the result; mu is held.
func (c *Crew) end(t *task, r *running, result host.Disk, err error) {
	switch {
	case err == nil:
		t.last = Figure{Disk: result, At: r.begun}
	case errors.Is(err, fs.ErrNotExist):
		t.last = Figure{Err: err}
	case errors.Is(err, ErrBusy):
	default: // the last figure stays
		t.last.Err = err
		if t.told != err.Error() {
			t.told = err.Error()
			klog.ErrorS(err, "Cannot measure; using the last known figure", "what", t.key)
		}
	}
	if t.hangs && !r.stuck {
		klog.InfoS("Measuring no longer hangs", "what", t.key)
	}
	t.slow, t.hangs = t.slow && r.late, t.hangs && r.stuck
	t.running = nil
	t.due = c.clock.Now().Add(c.rest * r.work)
	close(r.done)
}

// tell logs why a part of t cannot be read, once for each reason.
func (t *task) tell(unread int, why error) {
	t.unread = unread
	if why != nil && t.told != why.Error() {
		t.told = why.Error()
		klog.ErrorS(why, "Cannot measure all files; unreadable files are not counted", "what", t.key, "names", unread)
	}
}

// askTree requests the size of the files below path, except entries of path named in skip.
func (c *Crew) askTree(path string, skip ...string) Ask {
	key := "files in " + path
	return Ask{Key: key, Begin: func() Pass {
		w := NewWalk(path, skip...)
		return func(soFar func(host.Disk) bool) (host.Disk, bool, error) {
			sum, done, err := w.Step(soFar)
			if n, why := w.Unread(); done && err == nil {
				c.mu.Lock()
				c.tasks[key].tell(n, why)
				c.mu.Unlock()
			}
			return sum, done, err
		}
	}}
}

// knows says whether a key was requested recently.
func (c *Crew) knows(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks[key] != nil
}
