package epoll

import (
	"cmp"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

const (
	// acceptBatch is how many connections a loop takes at most before others may have some.
	acceptBatch = 16
	// acceptRest is the pause after a socket could not be watched, listenRest that after it did not let a socket listen again.
	acceptRest = 20 * time.Millisecond
	listenRest = time.Second
	// probedFrom is the age from which a connection's endpoint is asked whether it is still there. Most do not live so long.
	probedFrom = 10 * time.Second
	// movesPerTurn keeps one busy connection from holding up the others.
	movesPerTurn = 16
)

// maxBacklog is more than net.core.somaxconn, to which the kernel limits it.
const maxBacklog = 1<<16 - 1

// listener listens on one address, in every loop.
type listener struct {
	plane     *plane
	addr      netip.AddrPort
	fd        int
	expect    func(fd int) *carrier // the front of that connection, which expects it from now on; nil: the front is gone
	listened  func(fd int) error    // it listens, at first or again; nil: nothing hangs on that
	acceptors []*acceptor           // by loop
}

// acceptor is a listener in one loop.
type acceptor struct {
	*listener
	loop  *loop
	timer timer // runs while the acceptor rests
	batch int   // to accept now
	last  int   // turn of the loop that took some
	// awaits a descriptor that is given back
	awaits bool
}

func (p *plane) listenTCP(addr netip.AddrPort, is traits, expect func(fd int) *carrier, listened func(fd int) error) (*listener, error) {
	// Accepted sockets inherit these, so they need not be set on each.
	fd, err := bound(unix.SOCK_STREAM, addr, is, func(fd int) error {
		for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.IPPROTO_TCP, unix.TCP_NODELAY}} {
			if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
				return err
			}
		}
		return relay.SetKeepAlive(uintptr(fd))
	})
	if err != nil {
		return nil, err
	}
	s := &listener{plane: p, addr: addr, fd: fd, expect: expect, listened: listened}
	if err := s.begin(); err != nil {
		closeSocket(fd)
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	for _, l := range p.loops {
		a := &acceptor{listener: s, loop: l}
		a.timer.owner = a
		s.acceptors = append(s.acceptors, a)
		l.post(a.expired)
	}
	p.shared.Ledger.Listens(1)
	return s, nil
}

// Close implements relay.Socket.
func (s *listener) Close() {
	s.plane.each(func(l *loop) {
		s.acceptors[l.index].timer.stop()
		l.forget(s.fd)
	})
	closeSocket(s.fd)
	s.plane.shared.Ledger.Listens(-1)
}

// Silence implements relay.Silencer. What came in before is served, or held.
func (s *listener) Silence(on bool) error { return silence(s.fd, on) }

// expired begins to accept, at first and after a rest.
func (a *acceptor) expired() {
	if err := a.loop.watch(a.fd, shared, a); err != nil {
		a.rest(err, acceptRest)
	}
}

// begin listens, also after that was ended from outside (ss -K), after which the socket is as if it had never listened.
func (s *listener) begin() error {
	err := unix.Listen(s.fd, maxBacklog)
	if err == nil && s.listened != nil {
		err = s.listened(s.fd)
	}
	return err
}

// ready takes connections: one, and more when there were some again in the loop's turn before. To ask for one that is not there costs the
// kernel as much as one that is.
func (a *acceptor) ready(uint32) {
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
			klog.InfoS("Another program closed a listening socket (ss -K); listening again", "at", a.addr)
			a.expired()
			return
		}
	}
}

// take hands a connection to the loop that is to have it.
func (a *acceptor) take(fd int, from netip.Addr) {
	c := a.expect(fd)
	if c == nil {
		resetAtClose(fd)
		closeSocket(fd)
		return
	}
	l := a.plane.evenly(a.loop)
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
	carrier        *carrier
	entry          entry
	member         limits.Member
	timer          timer // of holding, of connecting, then until it is probedFrom old
	from           netip.Addr
	endpoint       netip.AddrPort
	search         choose.Search
	client, server end
	last           atomic.Uint32 // second in which something moved
	state          state
	held           bool // counted in carrier.held
	queued         bool // in loop.busy
}

// serve carries one connection from here to its end.
func (c *carrier) serve(l *loop, fd int, from netip.Addr) {
	n := &conn{loop: l, carrier: c, from: from}
	n.client, n.server = end{conn: n, fd: int32(fd)}, end{conn: n, fd: -1}
	n.entry.guest, n.timer.owner, n.member.Occupant = n, n, n
	n.touch()
	c.enter(l, &n.entry)
	c.Metrics.Accepted.Inc()
	if !c.Admits(from) || !n.admit() {
		n.abort()
		return
	}
	n.dial(nil)
}

// dial goes to the next endpoint. last is why the one before it did not do.
func (n *conn) dial(last error) {
	for {
		step := n.search.Next(n.carrier.Chooser, n.from)
		if step.Do == choose.Hold && n.hold() {
			return
		}
		if step.Do != choose.Dial {
			break
		}
		switch last = n.connect(step.Endpoint, step.Patience); last {
		case nil:
			return
		case relay.ErrNoFiles: // no endpoint's fault
			n.abort()
			return
		case relay.ErrNoRoom:
			n.search.Skip(step.Endpoint)
		default:
			n.search.Failed(n.carrier.Chooser, step.Endpoint)
		}
	}
	if last != relay.ErrNoRoom { // those are counted by limit
		n.carrier.Metrics.Refused.Inc()
	}
	klog.V(2).InfoS("Connection refused: no endpoint answers", "client", n.from, "front", n.carrier.Chooser.Route().Front, "err", cmp.Or(last, relay.ErrNoEndpoint))
	n.abort()
}

func (n *conn) connect(target netip.AddrPort, patience time.Duration) error {
	if n.carrier.IsOwn(target) {
		return relay.ErrOwnFront
	}
	ledger := n.loop.ledger
	if !n.carrier.KeepsClient() { // the client's address has its own source ports
		gone, ok := n.carrier.Connect(n.from, &n.member, target)
		n.loop.evict(gone)
		if !ok {
			return relay.ErrNoRoom
		}
	}
	fd, errno := n.carrier.open(unix.SOCK_STREAM, target, n.from)
	if errno != 0 {
		ledger.Disconnect(&n.member)
	}
	switch {
	case relay.NoFiles(errno):
		n.loop.evict(ledger.NoFiles(errno))
		return relay.ErrNoFiles
	case errno == unix.EADDRNOTAVAIL:
		n.carrier.Exhausted()
	}
	if errno != 0 {
		return fmt.Errorf("cannot connect to endpoint %s: %w", target, errno)
	}
	n.endpoint, n.server.fd, n.state = target, int32(fd), connecting
	if err := n.loop.watch(fd, edge, &n.server); err != nil {
		n.server.shut()
		ledger.Disconnect(&n.member)
		return err
	}
	n.loop.begin(&n.timer, patience)
	return nil
}

// hold waits for a front that drops to get an endpoint; false: too many wait.
func (n *conn) hold() bool {
	if n.carrier.held.Load() >= choose.MaxHeld {
		return false
	}
	n.carrier.held.Add(1)
	n.held, n.state = true, holding
	n.loop.begin(&n.timer, choose.HoldTime)
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
	switch {
	case n.state == holding:
		n.timer.stop()
		n.release()
		n.dial(nil)
	case !n.carrier.Chooser.Leads(n.endpoint):
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
		if err := relay.SetKeepAlive(uintptr(n.server.fd)); err != nil {
			klog.V(2).InfoS("Cannot keep a connection alive", "endpoint", n.endpoint, "err", err)
		}
	}
}

func (n *conn) retry(errno unix.Errno) {
	n.timer.stop()
	n.server.shut()
	n.loop.ledger.Disconnect(&n.member)
	n.search.Failed(n.carrier.Chooser, n.endpoint)
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
	n.state = relaying
	n.search.Done()
	n.carrier.Established(&n.member)
	if open := n.carrier.Open(); open&0xff == 0 { // often enough, and hardly ever
		n.carrier.Crowded(open, n.carrier.plane.ports)
	}
	n.loop.begin(&n.timer, probedFrom)
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
	n.carrier.Leave(&n.member)
	n.carrier.leave(n.loop, &n.entry)
}

// probe has the kernel find out within seconds whether the other end of a connection is still there.
func probe(fd int) error {
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(relay.ProbeRemoved.Idle.Seconds())},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(relay.ProbeRemoved.Interval.Seconds())}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, relay.ProbeRemoved.Count},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(relay.ProbeTimeout.Milliseconds())}} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return err
		}
	}
	return nil
}
