package server

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// turnLimits bound the questions to the API server of one kind.
type turnLimits struct {
	places, perSource    int           // under way: in all, and of one source
	waiting, waitPerLine int           // waiting for a place: in all, and of one source
	patience             time.Duration // how long one waits
	hold                 time.Duration // how long a place stays taken after a bad answer, which bounds those per second
}

var (
	// strangerTurns are for tokens that have not been seen: whoever reaches the port can send them. One source has at most 8 bad answers a
	// second, all of them together 32.
	strangerTurns = turnLimits{places: 32, perSource: 8, waiting: 1024, waitPerLine: 64, patience: 10 * time.Second, hold: time.Second}
	// regularTurns are for tokens that were good before, and for connections whose last token was.
	regularTurns = turnLimits{places: 64, perSource: 32, waiting: 1024, waitPerLine: 256, patience: 10 * time.Second}
	// accessTurns are for what an authenticated user may; a user is a source.
	accessTurns = turnLimits{places: 100, perSource: 20, waiting: 1024, waitPerLine: 256, patience: 10 * time.Second}
)

// turns hands out places to ask. Sources that wait get the next free place in rotation, so that each one's turn comes after at most as many
// questions as there are sources, however much one of them sends. Within a source, which may be many clients behind one address, the
// connection that has been asked for least comes first, then the one that has waited longest. It keeps that place when it is sent away and
// comes again.
type turns struct {
	limits turnLimits
	// after is time.AfterFunc, except in tests.
	after func(time.Duration, func())

	mu      sync.Mutex
	taken   int
	waiting int
	arrived uint64
	lines   map[string]*line // sources with a place or with a request that waits
	ring    []*line          // those in which a request waits; the first has the next turn
}

type line struct {
	source  string
	taken   int
	waiting []*waiter
}

type waiter struct {
	from    *standing
	arrived uint64
	turn    chan bool // true: a place; false: sent away
}

// standing is that of one connection among those who wait. It belongs to the turns.
type standing struct {
	asked int    // questions for it since the last good answer
	since uint64 // its first arrival for which nothing was asked yet; 0: none
}

// visitor is a client's connection.
type visitor struct {
	stranger, regular standing
	known             atomic.Bool // its last token was good

	asking   atomic.Int32 // requests that are being authenticated
	admitted atomic.Bool  // one was
	leave    func()       // the crowd; nil: it is in none
}

func newTurns(limits turnLimits) *turns {
	return &turns{limits: limits, lines: map[string]*line{}, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
}

// enter waits for a place. Whoever got one must leave, with what came of the question. errBusy: there is no room to wait, or no place came
// free in time.
func (t *turns) enter(ctx context.Context, source string, from *standing) (leave func(good bool), err error) {
	w := t.arrive(source, from)
	patience := time.NewTimer(t.limits.patience)
	defer patience.Stop()
	err = errBusy
	select {
	case granted := <-w.turn:
		if granted {
			return t.leaver(source, from), nil
		}
		return nil, errBusy
	case <-patience.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[source]; l != nil && l.drop(w) {
		t.waiting--
		t.tidy(l)
	} else if <-w.turn { // it came in this moment
		t.release(source)
	}
	return nil, err
}

// leaver frees the place, once, and after a bad answer not before the hold is over.
func (t *turns) leaver(source string, from *standing) func(good bool) {
	return func(good bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if good {
			from.asked = 0
		}
		if good || t.limits.hold == 0 {
			t.release(source)
			return
		}
		t.after(t.limits.hold, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.release(source)
		})
	}
}

func (t *turns) arrive(source string, from *standing) *waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.arrived++
	if from.since == 0 {
		from.since = t.arrived
	}
	w := &waiter{from: from, arrived: t.arrived, turn: make(chan bool, 1)}
	l := t.lines[source]
	if l == nil {
		l = &line{source: source}
		t.lines[source] = l
	}
	if len(l.waiting) == 0 {
		t.ring = append(t.ring, l)
	}
	l.waiting = append(l.waiting, w)
	t.waiting++
	t.dispatch()
	switch {
	case len(l.waiting) > t.limits.waitPerLine:
		t.sendAway(l)
	case t.waiting > t.limits.waiting:
		t.sendAway(t.longest())
	}
	return w
}

// dispatch gives free places to those whose turn it is.
func (t *turns) dispatch() {
	for passed := 0; t.taken < t.limits.places && passed < len(t.ring); {
		l := t.ring[0]
		t.ring = append(t.ring[1:], l)
		if l.taken >= t.limits.perSource {
			passed++
			continue
		}
		passed = 0
		w := slices.MinFunc(l.waiting, compareWaiters)
		l.drop(w)
		l.taken++
		t.taken++
		t.waiting--
		w.from.asked++
		w.from.since = 0
		w.turn <- true
		t.tidy(l)
	}
}

// compareWaiters orders those of one source.
func compareWaiters(a, b *waiter) int {
	switch {
	case a.from.asked != b.from.asked:
		return a.from.asked - b.from.asked
	case a.from.since < b.from.since:
		return -1
	case a.from.since > b.from.since:
		return 1
	case a.arrived < b.arrived:
		return -1
	}
	return 1
}

// longest is the line in which most wait. Of several it is the one whose last came last.
func (t *turns) longest() *line {
	return slices.MaxFunc(t.ring, func(a, b *line) int {
		if len(a.waiting) != len(b.waiting) {
			return len(a.waiting) - len(b.waiting)
		}
		return compareWaiters(slices.MaxFunc(a.waiting, compareWaiters), slices.MaxFunc(b.waiting, compareWaiters))
	})
}

func (t *turns) sendAway(l *line) {
	last := slices.MaxFunc(l.waiting, compareWaiters)
	l.drop(last)
	t.waiting--
	last.turn <- false
	t.tidy(l)
}

func (t *turns) release(source string) {
	l := t.lines[source]
	l.taken--
	t.taken--
	t.tidy(l)
	t.dispatch()
}

// tidy forgets an empty line.
func (t *turns) tidy(l *line) {
	if len(l.waiting) > 0 {
		return
	}
	t.ring = slices.DeleteFunc(t.ring, func(other *line) bool { return other == l })
	if l.taken == 0 {
		delete(t.lines, l.source)
	}
}

func (l *line) drop(w *waiter) bool {
	before := len(l.waiting)
	l.waiting = slices.DeleteFunc(l.waiting, func(other *waiter) bool { return other == w })
	return len(l.waiting) < before
}

// sourceOf is whom a request counts against: the address that it comes from, of IPv6 the network of 64 bits, which a host has to itself.
func sourceOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is4() {
		return addr.String()
	}
	return netip.PrefixFrom(addr, 64).Masked().String()
}
