package epoll

import (
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// evict ends the members that must make room.
func (l *loop) evict(gone []*limits.Member) {
	for _, m := range gone {
		m.Occupant.Evict(l)
	}
}

// at runs do in loop own: immediately if the caller is in it, unless that loop is iterating over its guests.
func at(own *loop, here any, do func()) {
	if l, ok := here.(*loop); ok && l == own && !l.telling {
		do()
		return
	}
	own.post(do)
}

// Seen implements limits.Occupant.
func (n *conn) Seen() uint32 { return n.last.Load() }

// Evict implements limits.Occupant.
func (n *conn) Evict(here any) { at(n.loop, here, n.abort) }

// touch records activity.
func (n *conn) touch() {
	if n.last.Load() != n.loop.seconds {
		n.last.Store(n.loop.seconds)
	}
}

// admit requests room for the connection.
func (n *conn) admit() bool {
	gone, ok := n.carrier.Enter(n.from, &n.member)
	n.loop.evict(gone)
	return ok
}

// Seen implements limits.Occupant. It returns when the session would end, so that an answered question is evicted
// before a continuing exchange.
func (o *session) Seen() uint32 { return o.until.Load() }

// Evict implements limits.Occupant.
func (o *session) Evict(here any) { at(o.socket.loop, here, o.abort) }

// admit requests room for the session. It is never refused while sessions of the client or of others can be evicted.
func (o *session) admit() bool {
	l := o.socket.loop
	o.until.Store(limits.SecondsAt(l.now.Add(o.socket.carrier.Idle(0))))
	gone, ok := o.socket.carrier.Enter(o.client.Addr().Unmap(), &o.member)
	l.evict(gone)
	return ok
}

// exhausted pauses until a descriptor is released, and makes the client with the most release one.
func (a *acceptor) exhausted(errno unix.Errno) {
	a.loop.forget(a.fd)
	a.loop.evict(a.loop.ledger.NoFiles(errno))
	if !a.awaits {
		a.awaits = true
		a.loop.ledger.Await(func() { a.loop.post(a.resume) })
	}
	a.loop.begin(&a.timer, relay.FilesRest)
}

func (a *acceptor) resume() {
	a.awaits = false
	if a.timer.timers != nil { // paused, and not closed
		a.timer.stop()
		a.expired()
	}
}

// rest pauses, so that some connections can end first.
func (a *acceptor) rest(err error, pause time.Duration) {
	if a.loop.ledger.DueToLog() {
		klog.ErrorS(err, "Cannot accept connections; trying again shortly", "at", a.addr)
	}
	a.loop.begin(&a.timer, pause)
}

// dropPipe closes a pipe.
func (l *loop) dropPipe(p pipe) {
	p.close()
	l.ledger.DropPipe()
}
