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
	// bufferSize holds any UDP packet, and enough of a stream that system calls do not count.
	bufferSize = 64 << 10
	maxEvents  = 128
	// briefly is how long a loop waits for events before its processor is given to others, in milliseconds: the least that epoll_wait knows, and
	// far longer than a busy loop waits.
	briefly = 1
	// edge: the kernel tells once what has become possible, so nothing needs to be asked for or taken back while a connection lives.
	edge = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	// shared: of the loops that listen on one socket one is woken.
	shared = unix.EPOLLIN | unix.EPOLLEXCLUSIVE
)

// loop is one thread's share of the data plane. Everything in it belongs to its goroutine, but for post.
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
	telling     bool   // goes through its guests
	turn        int    // counts what epoll_wait has returned
	ended       bool
	done        chan struct{}
}

// inbox is what others ask a loop to do. It is safe for concurrent use.
type inbox struct {
	wake   int // an eventfd
	mu     sync.Mutex
	posted []func()
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// handler is what a file descriptor belongs to.
type handler interface{ ready(events uint32) }

// slot is who handles a file descriptor. Its generation tells an event of the one that had its number before, which may still be in the
// batch that epoll_wait returned.
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

// post has the loop run do, soon. It may be called from anywhere.
func (l *loop) post(do func()) {
	in := &l.inbox
	in.mu.Lock()
	in.posted = append(in.posted, do)
	first := len(in.posted) == 1
	in.mu.Unlock()
	if first {
		_, _ = unix.Write(in.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // only a full counter refuses, and that wakes too
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

// forget ends what watch began, for a socket that stays open.
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
	runtime.LockOSThread() // who wakes up needs no other thread to go on with
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
		l.busy, l.spare = l.spare[:0], busy // who is busy again comes with the next batch
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

// wait returns the next events. Where there are some within briefly, Go's scheduler is not told that this thread waits: it would take the
// processor away, for a goroutine that is not there, and wake a thread to watch over that, thousands of times a second. See New.
func (l *loop) wait(events []unix.EpollEvent) (int, error) {
	patience := l.patience()
	first := briefly
	if patience >= 0 {
		first = min(patience, briefly)
	}
	n, errno := epollWait(l.epoll, events, first)
	switch {
	case errno == unix.EINTR: // by the scheduler or the garbage collector, which want this goroutine to stop for a moment
		return 0, nil
	case errno != 0:
		return 0, errno
	case n > 0 || first == patience:
		return n, nil
	}
	return unix.EpollWait(l.epoll, events, patience)
}

// patience is how long to wait for events, in milliseconds; -1: until there is one.
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

// timer calls its owner's expired once its time has come, unless it is stopped before. The zero timer is not running.
type timer struct {
	owner          interface{ expired() }
	at             time.Time
	timers         *timers
	previous, next *timer
}

// timers are those of one duration. As each is begun at the end, they are in the order in which they expire.
type timers struct {
	after       time.Duration
	first, last *timer
}

// begin has t expire after d from now, whatever it was to do before. Durations are few: each has its list.
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
