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
	// slice is how long a measurement goes on while others wait.
	slice = 100 * time.Millisecond
	// hangs is after how long without a word a measurement does not count as one of the crew any more.
	hangs = 2 * time.Second
	// rest is how much longer than a measurement took the pause after it is at least, so that one tree takes a twentieth of one core at most.
	rest = 20
	// forgotten is after how long without an ask figures are dropped.
	forgotten = 10 * time.Minute
)

// Pass is one measurement, done piece by piece: it returns done false where soFar wanted a pause, and is then called again.
type Pass func(soFar func(host.Disk) (pause bool)) (result host.Disk, done bool, err error)

// Ask is a figure that a caller wants.
type Ask struct {
	Key   string // names what is measured: there is one measurement of it at a time
	Begin func() Pass
}

// Crew does measurements, a few at a time and in turns, and remembers what they found. One that hangs makes room for another.
type Crew struct {
	clock clock.WithDelayedExecution

	mu      sync.Mutex
	free    int // measurements that may begin or go on now
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
	due     time.Time // not measured before, unless it is urgent
	unread  int       // names in it that could not be read
	told    string    // why, as the log has it
	running *running
}

// running is a measurement that has not ended.
type running struct {
	pass  Pass
	begun time.Time
	work  time.Duration
	soFar host.Disk
	turn  int // counts its pieces
	hung  bool
	late  bool // a caller has waited in vain
	done  chan struct{}
}

// NewCrew makes one that does size measurements at a time.
func NewCrew(clock clock.WithDelayedExecution, size int) *Crew {
	return &Crew{clock: clock, free: max(size, 1), tasks: map[string]*task{}}
}

// State is how a crew gets on.
type State struct {
	Running int    // measurements that have begun and not ended
	Hung    int    // those of them that hang
	Unread  int    // names that could not be read
	Late    uint64 // how often a measurement did not end in time
}

// State says how the crew gets on.
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

// Look gives the figures that are asked for. It waits until all that have to be measured are, or until patience or ctx has ended; it does
// not wait for what a caller waited for before in vain.
func (c *Crew) Look(ctx context.Context, terms Terms, asks []Ask) []Figure {
	tasks, wait := c.begin(terms, asks)
	if len(wait) > 0 {
		timer := c.clock.NewTimer(terms.Patience)
		defer timer.Stop()
	waiting:
		for _, done := range wait {
			select {
			case <-done:
			case <-timer.C():
				break waiting
			case <-ctx.Done():
				break waiting
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Figure, len(tasks))
	for i, t := range tasks {
		out[i] = c.figure(t)
	}
	return out
}

// Disk is the file system on which path lies, as host.DiskUsage tells it, for who cannot wait for one that hangs.
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

// figure is what is known of a task; mu is held.
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
		klog.InfoS("Measuring files takes long; using the last known figure, or what was counted so far if that is more",
			"what", t.key, "since", r.begun, "bytes", out.Used, "files", out.InodesUsed)
	}
	return out
}

// sweep drops what was not asked for in a long time; mu is held.
func (c *Crew) sweep(now time.Time) {
	if now.Sub(c.swept) < forgotten/10 {
		return
	}
	c.swept = now
	for key, t := range c.tasks {
		if t.running == nil && now.Sub(t.asked) >= forgotten {
			delete(c.tasks, key)
		}
	}
}

// dispatch lets measurements go on that wait for their turn; mu is held.
func (c *Crew) dispatch() {
	for c.free > 0 && len(c.waiting) > 0 {
		t := c.waiting[0]
		c.waiting[0], c.waiting = nil, c.waiting[1:]
		c.free--
		go c.work(t, t.running) // a file system can hang for good: no caller can wait for that
	}
}

// work does a piece of t.
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
		klog.InfoS("Measuring files continues after it hung", "what", t.key)
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

// giveUp takes a measurement that hangs out of the crew.
func (c *Crew) giveUp(t *task, r *running, turn int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.turn != turn {
		return
	}
	r.hung = true
	c.hung++
	c.free++
	klog.InfoS("Measuring files hangs; continuing with other measurements", "what", t.key, "since", r.begun)
	c.dispatch()
}

// end keeps what was found; mu is held.
func (c *Crew) end(t *task, r *running, result host.Disk, err error) {
	switch {
	case err == nil:
		t.last = Figure{Disk: result, At: r.begun}
	case errors.Is(err, fs.ErrNotExist):
		t.last = Figure{Err: err}
	default: // the last figure stays
		t.last.Err = err
		t.tell(0, err)
	}
	t.running = nil
	t.due = c.clock.Now().Add(rest * r.work)
	close(r.done)
}

// tell logs why something of t cannot be read, once for each reason.
func (t *task) tell(unread int, why error) {
	t.unread = unread
	if why != nil && t.told != why.Error() {
		t.told = why.Error()
		klog.ErrorS(why, "Cannot measure all files; unreadable files are not counted", "what", t.key, "names", unread)
	}
}

// askTree asks what the files below path take, but for those with one of the names skip in it.
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

// knows says whether a key was asked for lately.
func (c *Crew) knows(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks[key] != nil
}
