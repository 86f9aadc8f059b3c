package relay

import (
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"
)

// letGo ends those who made room.
func (l *loop) letGo(gone []*member) {
	for _, m := range gone {
		m.occupant.evict(l)
	}
}

// at runs do in loop own: now if the caller is in it, unless that goes through its guests.
func at(own *loop, here any, do func()) {
	if l, ok := here.(*loop); ok && l == own && !l.telling {
		do()
		return
	}
	own.post(do)
}

// seen implements occupant.
func (n *conn) seen() uint32 { return n.last.Load() }

// evict implements occupant.
func (n *conn) evict(here any) { at(n.loop, here, n.abort) }

// touch notes that something moves.
func (n *conn) touch() {
	if n.last.Load() != n.loop.seconds {
		n.last.Store(n.loop.seconds)
	}
}

// admit asks for room.
func (n *conn) admit() bool {
	gone, ok := n.loop.ledger.enter(n.carrier.front, n.from, &n.member)
	n.loop.letGo(gone)
	return ok
}

// seen implements occupant: when the session would end, so that a question whose answer has come goes before an exchange that goes on.
func (o *loopSession) seen() uint32 { return o.until.Load() }

// evict implements occupant.
func (o *loopSession) evict(here any) { at(o.socket.loop, here, o.abort) }

// admit asks for room. It is never refused while the client's own or others' sessions can go.
func (o *loopSession) admit() bool {
	l := o.socket.loop
	o.until.Store(secondsAt(l.now.Add(min(shortUDPIdle, o.socket.carrier.cfg.UDPIdle))))
	gone, ok := l.ledger.enter(o.socket.carrier.front, o.client.Addr().Unmap(), &o.member)
	l.letGo(gone)
	return ok
}

// exhausted rests until somebody gives a descriptor back, and has whoever has the most do so.
func (a *loopAcceptor) exhausted(errno unix.Errno) {
	a.loop.forget(a.fd)
	a.loop.letGo(a.loop.ledger.out(errno))
	if !a.awaits {
		a.awaits = true
		a.loop.ledger.await(func() { a.loop.post(a.resume) })
	}
	a.loop.begin(&a.timer, filesRest)
}

func (a *loopAcceptor) resume() {
	a.awaits = false
	if a.timer.timers != nil { // it rests, and has not been closed
		a.timer.stop()
		a.expired()
	}
}

// rest lets some connections end first.
func (a *loopAcceptor) rest(err error, pause time.Duration) {
	if a.loop.ledger.due(saying{cause: noLimit}) {
		klog.ErrorS(err, "Cannot accept connections for a while", "at", a.addr)
	}
	a.loop.begin(&a.timer, pause)
}

// dropPipe closes a pipe.
func (l *loop) dropPipe(p pipe) {
	p.close()
	l.ledger.pipes.Add(-1)
}

// takePipe counts a pipe; false: there are enough.
func (l *ledger) takePipe() bool {
	if int(l.pipes.Add(1)) > l.maxPipes() {
		l.pipes.Add(-1)
		return false
	}
	return true
}

func (l *ledger) maxPipes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits.pipes
}
