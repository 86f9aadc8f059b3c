package relay

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"
)

const (
	// acceptBatch is how many connections a loop takes at most before others may have some.
	acceptBatch = 16
	// acceptRest is the pause after a socket could not be watched, listenRest that after it did not let a socket listen again.
	acceptRest = 20 * time.Millisecond
	listenRest = time.Second
	// settled is the age from which a connection's endpoint is asked whether it is still there. Most do not live so long.
	settled = 10 * time.Second
	// movesPerTurn keeps one busy connection from holding up the others.
	movesPerTurn = 16
)

// maxBacklog is more than net.core.somaxconn, to which the kernel limits it.
const maxBacklog = 1<<16 - 1

// loopListener listens on one address, in every loop.
type loopListener struct {
	loops     *loops
	addr      netip.AddrPort
	fd        int
	expect    func(fd int) *loopCarrier // whose connection that is, which expects it from now on; nil: nobody's any more
	listened  func(fd int) error        // it listens, at first or again; nil: nothing hangs on that
	acceptors []*loopAcceptor           // by loop
}

// loopAcceptor is a loopListener in one loop.
type loopAcceptor struct {
	*loopListener
	loop  *loop
	timer timer // runs while the acceptor rests
	batch int   // to take at once
	last  int   // turn of the loop that took some
	// awaits a descriptor that somebody gives back
	awaits bool
}

func (p *loops) listenTCP(addr netip.AddrPort, is traits, expect func(fd int) *loopCarrier, listened func(fd int) error) (*loopListener, error) {
	// Accepted sockets inherit these, so they need not be set on each.
	fd, err := bound(unix.SOCK_STREAM, addr, is, func(fd int) error {
		for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.IPPROTO_TCP, unix.TCP_NODELAY}} {
			if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
				return err
			}
		}
		return setKeepAlive(uintptr(fd))
	})
	if err != nil {
		return nil, err
	}
	s := &loopListener{loops: p, addr: addr, fd: fd, expect: expect, listened: listened}
	if err := s.begin(); err != nil {
		closeSocket(fd)
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	for _, l := range p.all {
		a := &loopAcceptor{loopListener: s, loop: l}
		a.timer.owner = a
		s.acceptors = append(s.acceptors, a)
		l.post(a.expired)
	}
	p.ledger.listens(1)
	return s, nil
}

func (s *loopListener) close() {
	s.loops.each(func(l *loop) {
		s.acceptors[l.index].timer.stop()
		l.forget(s.fd)
	})
	closeSocket(s.fd)
	s.loops.ledger.listens(-1)
}

// silence implements silencer. What came in before is served, or held.
func (s *loopListener) silence(on bool) error { return silence(s.fd, on) }

// expired begins to accept, at first and after a rest.
func (a *loopAcceptor) expired() {
	if err := a.loop.watch(a.fd, shared, a); err != nil {
		a.rest(err, acceptRest)
	}
}

// begin listens, also where somebody has ended that (ss -K), after which the socket is as if it had never listened.
func (s *loopListener) begin() error {
	err := unix.Listen(s.fd, maxBacklog)
	if err == nil && s.listened != nil {
		err = s.listened(s.fd)
	}
	return err
}

// ready takes connections: one, and more when there were some again in the loop's turn before. To ask for one that is not there costs the
// kernel as much as one that is.
func (a *loopAcceptor) ready(uint32) {
	if a.last+1 == a.loop.turn {
		a.batch = min(2*a.batch, acceptBatch)
	} else {
		a.batch = 1
	}
	a.last = a.loop.turn
	for range a.batch {
		fd, from, errno := acceptSocket(a.fd)
		switch errno {
		case 0:
			a.take(fd, from.Addr().Unmap())
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			a.exhausted(errno)
			return
		case unix.EINVAL:
			a.loop.forget(a.fd)
			if err := a.begin(); err != nil {
				a.rest(err, listenRest)
				return
			}
			klog.InfoS("Somebody has ended the listening of a socket; it listens again", "at", a.addr)
			a.expired()
			return
		}
	}
}

// take hands a connection to the loop that is to have it.
func (a *loopAcceptor) take(fd int, from netip.Addr) {
	c := a.expect(fd)
	if c == nil {
		resetAtClose(fd)
		closeSocket(fd)
		return
	}
	l := a.loops.evenly(a.loop)
	l.conns.Add(1)
	if l == a.loop {
		c.serve(l, fd, from)
	} else {
		l.post(func() { c.serve(l, fd, from) })
	}
}

// state is where a connection is in its life.
type state uint8

const (
	holding    state = iota // for an endpoint, which a front that drops may get
	connecting              // to an endpoint
	relaying
	over
)

// conn joins a client and an endpoint.
type conn struct {
	loop           *loop
	carrier        *loopCarrier
	entry          entry
	member         member
	timer          timer // of holding, of connecting, then until it has settled
	from           netip.Addr
	endpoint       netip.AddrPort
	tried          []netip.AddrPort
	client, server end
	last           atomic.Uint32 // second in which something moved
	state          state
	held           bool // counted in carrier.held
	queued         bool // in loop.busy
}

// serve carries one connection from here to its end.
func (c *loopCarrier) serve(l *loop, fd int, from netip.Addr) {
	n := &conn{loop: l, carrier: c, from: from}
	n.client, n.server = end{conn: n, fd: int32(fd)}, end{conn: n, fd: -1}
	n.entry.guest, n.timer.owner, n.member.occupant = n, n, n
	n.touch()
	c.enter(l, &n.entry)
	c.counts.accepted.Inc()
	if !c.route.Load().Allows(from) || !n.admit() {
		n.abort()
		return
	}
	n.dial(nil)
}

// dial goes to the next endpoint. No byte of the client has been passed on before, so any of them will do.
func (n *conn) dial(last error) {
	last = cmp.Or(last, errNoEndpoint)
	for len(n.tried) < maxDials {
		target, ok := n.carrier.balancer.pick(n.from, n.tried)
		if !ok {
			if len(n.tried) == 0 && n.hold() {
				return
			}
			break
		}
		patience := dialTimeout
		if len(n.tried)+1 >= min(maxDials, len(n.carrier.route.Load().Backends)) {
			patience = lastDialTimeout
		}
		switch last = n.connect(target, patience); last {
		case nil:
			return
		case errNoFiles: // no endpoint's fault
			n.abort()
			return
		case errNoRoom:
			n.tried = append(n.tried, target)
		default:
			n.failed(target)
		}
	}
	if last != errNoRoom { // those are counted by limit
		n.carrier.counts.refused.Inc()
	}
	klog.V(2).InfoS("Connection refused: no endpoint answers", "client", n.from, "front", n.carrier.route.Load().Front, "err", last)
	n.abort()
}

func (n *conn) failed(target netip.AddrPort) {
	n.carrier.balancer.fail(target)
	n.tried = append(n.tried, target)
}

func (n *conn) connect(target netip.AddrPort, patience time.Duration) error {
	if n.carrier.own.has(n.carrier.protocol, target) {
		return errOwnFront
	}
	ledger := n.loop.ledger
	if !n.carrier.keepsClient() { // the client's own address has source ports of its own
		gone, ok := ledger.lead(n.carrier.front, n.from, &n.member, target)
		n.loop.letGo(gone)
		if !ok {
			return errNoRoom
		}
	}
	fd, errno := n.carrier.connect(unix.SOCK_STREAM, target, n.from)
	if errno != 0 {
		ledger.unlead(&n.member)
	}
	switch {
	case noFiles(errno):
		n.loop.letGo(ledger.out(errno))
		return errNoFiles
	case errno == unix.EADDRNOTAVAIL:
		n.carrier.exhausted()
	}
	if errno != 0 {
		return fmt.Errorf("cannot connect to endpoint %s: %w", target, errno)
	}
	n.endpoint, n.server.fd, n.state = target, int32(fd), connecting
	if err := n.loop.watch(fd, edge, &n.server); err != nil {
		n.server.shut()
		ledger.unlead(&n.member)
		return err
	}
	n.loop.begin(&n.timer, patience)
	return nil
}

// hold waits for a front that drops to get an endpoint; false: it does not drop, or too many wait.
func (n *conn) hold() bool {
	if !n.carrier.route.Load().Drop || n.carrier.held.Load() >= maxHeld {
		return false
	}
	n.carrier.held.Add(1)
	n.held, n.state = true, holding
	n.loop.begin(&n.timer, holdTime)
	return true
}

func (n *conn) release() {
	if n.held {
		n.carrier.held.Add(-1)
		n.held = false
	}
}

// changed implements guest.
func (n *conn) changed() {
	route := n.carrier.route.Load()
	switch {
	case n.state == holding:
		n.timer.stop()
		n.release()
		n.dial(nil)
	case !hasBackend(route, n.endpoint):
		// Alive it may go on (the pod may only be unready, or drain), dead it ends within seconds.
		if err := probe(int(n.server.fd)); err != nil {
			klog.V(2).InfoS("Cannot watch a connection to a removed endpoint", "endpoint", n.endpoint, "err", err)
		}
		if n.state == relaying {
			n.timer.stop() // it would set the usual pace
		}
	}
}

// expired ends the patience of the state.
func (n *conn) expired() {
	switch n.state {
	case holding:
		n.abort()
	case connecting:
		n.retry(unix.ETIMEDOUT)
	case relaying:
		if err := setKeepAlive(uintptr(n.server.fd)); err != nil {
			klog.V(2).InfoS("Cannot keep a connection alive", "endpoint", n.endpoint, "err", err)
		}
	}
}

func (n *conn) retry(errno unix.Errno) {
	n.timer.stop()
	n.server.shut()
	n.loop.ledger.unlead(&n.member)
	n.failed(n.endpoint)
	n.dial(fmt.Errorf("cannot connect to endpoint %s: %w", n.endpoint, errno))
}

// connected looks how connecting went.
func (n *conn) connected(events uint32) {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		value, err := unix.GetsockoptInt(int(n.server.fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && value != 0 {
			n.retry(unix.Errno(value))
			return
		}
	}
	if events&unix.EPOLLOUT == 0 {
		return
	}
	if err := n.loop.watch(int(n.client.fd), edge, &n.client); err != nil {
		klog.ErrorS(err, "Connection refused", "client", n.from)
		n.abort()
		return
	}
	n.state, n.tried = relaying, nil
	n.loop.ledger.settle(n.carrier.front, &n.member)
	if open := n.carrier.open(); open&0xff == 0 { // often enough, and hardly ever
		n.carrier.crowded(open, n.carrier.loops.ports)
	}
	n.loop.begin(&n.timer, settled)
	n.server.ready(events)
}

// turn moves what can be moved, both ways.
func (n *conn) turn() {
	if n.state != relaying {
		return
	}
	more, err := n.move(&n.client, &n.server)
	if err == 0 {
		var back bool
		back, err = n.move(&n.server, &n.client)
		more = more || back
	}
	switch {
	case err != 0:
		n.abort() // one side has failed: the other is to know it
	case n.client.told && n.server.told:
		n.end()
	case more && !n.queued:
		n.queued = true
		n.loop.busy = append(n.loop.busy, n)
	}
}

// move carries what is there from one end to the other. more: it stopped only to give others their turn.
func (n *conn) move(from, to *end) (more bool, errno unix.Errno) {
	for range movesPerTurn {
		if errno := to.flush(); errno != 0 {
			return false, errno
		}
		switch {
		case to.blocked && from.failed:
			return false, unix.ECONNRESET // it would be noticed only after the other end has taken what it does not take
		case to.blocked:
			return false, 0
		case from.ended && to.ended && from.told:
			to.told = true // by closing it, now
			return false, 0
		case from.ended:
			return false, to.tell()
		case !from.readable:
			return false, 0
		case from.bulk:
			errno = n.spliceOnce(from, to)
		default:
			errno = n.copyOnce(from, to)
		}
		if errno != 0 {
			return false, errno
		}
	}
	return true, 0
}

// abort implements guest: it sends a reset to both sides.
func (n *conn) abort() {
	for _, e := range []*end{&n.client, &n.server} {
		if e.fd >= 0 {
			resetAtClose(int(e.fd))
		}
	}
	n.end()
}

func (n *conn) end() {
	if n.state == over {
		return
	}
	n.release()
	n.state = over
	n.timer.stop()
	n.client.shut()
	n.server.shut()
	n.loop.conns.Add(-1)
	n.loop.ledger.leave(n.carrier.front, &n.member)
	n.carrier.leave(n.loop, &n.entry)
}

// probe has the kernel find out within seconds whether the other end of a connection is still there.
func probe(fd int) error {
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(probeRemoved.Idle.Seconds())},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(probeRemoved.Interval.Seconds())}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probeRemoved.Count},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(probeTimeout.Milliseconds())}} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return err
		}
	}
	return nil
}
