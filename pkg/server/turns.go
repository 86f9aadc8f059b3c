package server

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// turnLimits are the limits of one kind of question to the API server.
type turnLimits struct {
	name                 string        // in the metrics
	places, perSource    int           // in progress: in total, and per source
	waiting, waitPerLine int           // queued: in total, and per source
	patience             time.Duration // maximum time in the queue
	hold                 time.Duration // how long a place stays taken after a rejection, which limits rejections per second
}

var (
	// strangerTurns are for unknown tokens: anyone who reaches the port can send them. One source gets at most 8 rejections a second, all of them
	// together 32.
	strangerTurns = turnLimits{name: limitNewTokens, places: 32, perSource: 8, waiting: 1024, waitPerLine: 64, patience: 10 * time.Second, hold: time.Second}
	// regularTurns are for tokens that were accepted before, and for connections whose last token was.
	regularTurns = turnLimits{name: limitKnownTokens, places: 64, perSource: 32, waiting: 1024, waitPerLine: 256, patience: 10 * time.Second}
	// accessTurns are for permission checks of authenticated users; a user is a source.
	accessTurns = turnLimits{name: limitAccessReviews, places: 100, perSource: 20, waiting: 1024, waitPerLine: 256, patience: 10 * time.Second}
)

// turns queues questions to the API server. Waiting sources get free places in rotation, so that each waits for at most one question per source,
// however much another one sends. Within a source, which may be many clients behind one address, the connection with the fewest questions goes first,
// then the one that has waited longest. It keeps that position when it is rejected and returns.
type turns struct {
	limits turnLimits
	// after is time.AfterFunc, except in tests.
	after func(time.Duration, func())

	mu      sync.Mutex
	taken   int
	waiting int
	arrived uint64
	lines   map[string]*line // sources with a place or with a waiting request
	ring    []*line          // those with waiting requests; the first has the next turn
}

type line struct {
	source  string
	taken   int
	waiting []*waiter
}

type waiter struct {
	from    *standing
	arrived uint64
	turn    chan bool // true: got a place; false: rejected
}

// standing is one connection's priority in the queue. turns guards it.
type standing struct {
	asked int    // its questions since the last good answer
	since uint64 // its first arrival without a question yet; 0: none
}

// visitor is a client's connection.
type visitor struct {
	stranger, regular standing
	known             atomic.Bool // its last token was accepted

	asking   atomic.Int32 // requests in authentication
	admitted atomic.Bool  // a request was authenticated
	leave    func()       // removes it from the crowd; nil: not in it
}

func newTurns(limits turnLimits) *turns {
	return &turns{limits: limits, lines: map[string]*line{}, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
}

// enter waits for a place. The caller must call leave with the result of the question. errBusy: the queue is full, or no place became free in time.
func (t *turns) enter(ctx context.Context, source string, from *standing) (leave func(good bool), err error) {
	w := t.arrive(source, from)
	patience := time.NewTimer(t.limits.patience)
	defer patience.Stop()
	err = &fullError{t.limits.name}
	select {
	case granted := <-w.turn:
		if granted {
			return t.leaver(source, from), nil
		}
		return nil, err
	case <-patience.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[source]; l != nil && l.drop(w) {
		t.waiting--
		t.tidy(l)
	} else if <-w.turn { // the turn came at the same moment
		t.release(source)
	}
	return nil, err
}

// leaver returns a function that frees the place, once, and after a rejection only when the hold is over.
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

// dispatch assigns free places in turn.
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

// compareWaiters orders the waiters of one source.
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

// longest is the longest line. Among equals it is the one with the latest arrival.
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

// tidy deletes an empty line.
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

// sourceOf is the source of a request: its IPv4 address or IPv6 /64 network, which belongs to one host.
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
