package epoll

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

const (
	// bufferSize is enough for any UDP packet, and for a stream that system calls cost little.
	bufferSize = 64 << 10
	maxEvents  = 128
	// briefly is how long, in milliseconds, a loop waits for events before it releases its processor: the minimum of
	// epoll_wait, and far longer than a busy loop waits.
	briefly = 1
	// edge: the kernel reports each new readiness once, so nothing is registered or unregistered during a connection.
	edge = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	// shared: of the loops that listen on one socket, the kernel wakes one.
	shared = unix.EPOLLIN | unix.EPOLLEXCLUSIVE
)

// loop is one thread's share of the data plane. Everything in it except post is only for its goroutine.
//
//	posted functions --> epoll_wait --> handlers --> the busy ones' next turn --> packets out --> timers
type loop struct {
	epoll       int
	inbox       inbox
	slots       []slot // by file descriptor
	generation  int32
	timers      []*timers
	now         time.Time
	busy, spare []*conn // have more to move, after the others' turn
	packets     packets
	refusals    refusals
	pipes       []pipe
	scratch     [bufferSize]byte
	index       int
	conns       atomic.Int32
	ledger      *limits.Ledger
	seconds     uint32 // of now
	telling     bool   // iterating over its guests
	turn        int    // counts returns of epoll_wait
	ended       bool
	done        chan struct{}
}

// inbox holds functions that a loop must run. It is safe for concurrent use.
type inbox struct {
	wake   int // an eventfd
	mu     sync.Mutex
	posted []func()
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// handler handles the events of a file descriptor.
type handler interface{ ready(events uint32) }

// slot is the handler of a file descriptor. Its generation distinguishes events of a previous file with the same
// number, which may still be in epoll_wait's batch.
type slot struct {
	handler    handler
	generation int32
}

func newLoop(index int, ledger *limits.Ledger) (*loop, error) {
	l := &loop{index: index, ledger: ledger, now: time.Now(), seconds: limits.SecondsAt(time.Now()), done: make(chan struct{})}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot make an epoll: %w", err)
	}
	if l.inbox.wake, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		_ = unix.Close(l.epoll)
		return nil, fmt.Errorf("cannot make an eventfd: %w", err)
	}
	if err := l.watch(l.inbox.wake, unix.EPOLLIN, &l.inbox); err != nil {
		_, _ = unix.Close(l.epoll), unix.Close(l.inbox.wake)
		return nil, err
	}
	return l, nil
}

// close ends the loop. It must be empty.
func (l *loop) close() {
	l.post(func() { l.ended = true })
	<-l.done
}

// post makes the loop run do soon. It is safe for concurrent use.
func (l *loop) post(do func()) {
	in := &l.inbox
	in.mu.Lock()
	in.posted = append(in.posted, do)
	first := len(in.posted) == 1
	in.mu.Unlock()
	if first {
		_, _ = unix.Write(in.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if the counter is full, and then the loop wakes too
	}
}

// ready implements handler.
func (in *inbox) ready(uint32) {
	var count [8]byte
	_, _ = unix.Read(in.wake, count[:])
	in.mu.Lock()
	posted := in.posted
	in.posted = nil
	in.mu.Unlock()
	for _, do := range posted {
		do()
	}
}

// watch passes events of fd to h until fd is closed or forgotten.
func (l *loop) watch(fd int, events uint32, h handler) error {
	l.generation++
	for fd >= len(l.slots) {
		l.slots = append(l.slots, make([]slot, max(64, len(l.slots)))...)
	}
	event := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: l.generation}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("cannot watch a socket: %w", err)
	}
	l.slots[fd] = slot{h, l.generation}
	return nil
}

// forget ends a watch but keeps the socket open.
func (l *loop) forget(fd int) {
	l.slots[fd] = slot{}
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// shut closes a socket, which ends its watch.
func (l *loop) shut(fd int) {
	if fd < len(l.slots) {
		l.slots[fd] = slot{}
	}
	closeSocket(fd)
}

func (l *loop) run() {
	defer close(l.done)
	runtime.LockOSThread() // so that waking up needs no switch to another thread
	defer runtime.UnlockOSThread()
	events := make([]unix.EpollEvent, maxEvents)
	for !l.ended {
		n, err := l.wait(events)
		if err != nil && err != unix.EINTR {
			klog.ErrorS(err, "Cannot wait for events of sockets")
			break
		}
		l.now = time.Now()
		l.seconds = limits.SecondsAt(l.now)
		l.turn++
		for _, event := range events[:max(n, 0)] {
			if s := l.slots[event.Fd]; s.generation == event.Pad && s.handler != nil {
				s.handler.ready(event.Events)
			}
		}
		busy := l.busy
		l.busy, l.spare = l.spare[:0], busy // those that are busy again follow with the next batch
		for _, c := range busy {
			c.queued = false
			c.turn()
		}
		clear(busy)
		l.packets.flush()
		l.expire()
	}
	for _, p := range l.pipes {
		l.dropPipe(p)
	}
	for _, fd := range l.refusals.sockets {
		if fd > 0 {
			closeSocket(fd)
		}
	}
	_, _ = unix.Close(l.epoll), unix.Close(l.inbox.wake)
}

// wait returns the next events. If some arrive within briefly, Go's scheduler does not learn that this thread waits.
// Otherwise it would take away the processor, although no goroutine needs it, and wake a thread to watch for that,
// thousands of times per second. See New.
func (l *loop) wait(events []unix.EpollEvent) (int, error) {
	patience := l.patience()
	first := briefly
	if patience >= 0 {
		first = min(patience, briefly)
	}
	n, errno := epollWait(l.epoll, events, first)
	switch {
	case errno == unix.EINTR: // by the scheduler or the garbage collector, to stop this goroutine for a moment
		return 0, nil
	case errno != 0:
		return 0, errno
	case n > 0 || first == patience:
		return n, nil
	}
	return unix.EpollWait(l.epoll, events, patience)
}

// patience returns how long to wait for events, in milliseconds; -1: until there is one.
func (l *loop) patience() int {
	if len(l.busy) > 0 {
		return 0
	}
	patience := -1
	for _, t := range l.timers {
		if t.first == nil {
			continue
		}
		left := int(t.first.at.Sub(l.now)/time.Millisecond) + 1
		if left = max(left, 0); patience < 0 || left < patience {
			patience = left
		}
	}
	return patience
}

// timer calls its owner's expired at its time, unless it is stopped before. The zero timer is not running.
type timer struct {
	owner          interface{ expired() }
	at             time.Time
	timers         *timers
	previous, next *timer
}

// timers are all timers of one duration. New ones are appended, so they are in the order in which they expire.
type timers struct {
	after       time.Duration
	first, last *timer
}

// begin makes t expire after d from now, and replaces an earlier time. There are few durations: each has its own list.
func (l *loop) begin(t *timer, d time.Duration) {
	t.stop()
	var list *timers
	for _, one := range l.timers {
		if one.after == d {
			list = one
		}
	}
	if list == nil {
		list = &timers{after: d}
		l.timers = append(l.timers, list)
	}
	t.at, t.timers, t.previous = l.now.Add(d), list, list.last
	if list.last != nil {
		list.last.next = t
	} else {
		list.first = t
	}
	list.last = t
}

func (t *timer) stop() {
	if t.timers == nil {
		return
	}
	if t.previous != nil {
		t.previous.next = t.next
	} else {
		t.timers.first = t.next
	}
	if t.next != nil {
		t.next.previous = t.previous
	} else {
		t.timers.last = t.previous
	}
	t.timers, t.previous, t.next = nil, nil, nil
}

func (l *loop) expire() {
	for _, list := range l.timers {
		for t := list.first; t != nil && !t.at.After(l.now); t = list.first {
			t.stop()
			t.owner.expired()
		}
	}
}
