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
	// acceptBatch is the maximum number of connections that a loop accepts before others get a turn.
	acceptBatch = 16
	// acceptRest is the pause after a socket could not be watched, listenRest after a socket could not listen again.
	acceptRest = 20 * time.Millisecond
	listenRest = time.Second
	// probedFrom is the age of a connection from which its endpoint is probed with keep-alives. Most connections are
	// shorter.
	probedFrom = 10 * time.Second
	// movesPerTurn keeps one busy connection from delaying the others.
	movesPerTurn = 16
)

// maxBacklog exceeds net.core.somaxconn, to which the kernel limits it.
const maxBacklog = 1<<16 - 1

// listener listens on one address, in every loop.
type listener struct {
	plane     *plane
	addr      netip.AddrPort
	fd        int
	expect    func(fd int) *carrier // returns the carrier of that connection's front after calling its expect; nil: the front is gone
	listened  func(fd int) error    // called when the socket listens, at first or again; may be nil
	acceptors []*acceptor           // by loop
}

// acceptor is a listener in one loop.
type acceptor struct {
	*listener
	loop  *loop
	timer timer // runs while the acceptor pauses
	batch int   // number of connections to accept now
	last  int   // the last turn of the loop in which it accepted some
	// awaits is whether it waits for a free descriptor.
	awaits bool
}

func (p *plane) listenTCP(addr netip.AddrPort, is traits, expect func(fd int) *carrier, listened func(fd int) error) (*listener, error) {
	// Accepted sockets inherit these options.
	fd, err := p.socket(unix.SOCK_STREAM, addr, is, func(fd int) error {
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

// Silence implements relay.Silencer. Connections that arrived before are served, or held.
func (s *listener) Silence(towards relay.Silence) error {
	return silence(s.fd, towards, s.plane.shared.Near.Ranges())
}

// expired starts to accept, at first and after a pause.
func (a *acceptor) expired() {
	if err := a.loop.watch(a.fd, shared, a); err != nil {
		a.rest(err, acceptRest)
	}
}

// begin listens, also after an administrator ended that (ss -K), which leaves the socket as if it had never listened.
func (s *listener) begin() error {
	err := unix.Listen(s.fd, maxBacklog)
	if err == nil && s.listened != nil {
		err = s.listened(s.fd)
	}
	return err
}

// ready accepts one connection, and more if there were some in the loop's previous turn too. Trying to accept costs the
// kernel as much without a connection as with one.
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

// take passes a connection to its loop.
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

// state is the state of a connection.
type state uint8

const (
	holding    state = iota // waiting for an endpoint, which a front that drops may get
	connecting              // to an endpoint
	relaying
	over
)

// conn connects a client and an endpoint.
type conn struct {
	loop           *loop
	carrier        *carrier
	entry          entry
	member         limits.Member
	timer          timer // limits holding and connecting; then runs until the connection is probedFrom old
	from           netip.Addr
	endpoint       netip.AddrPort
	search         choose.Search
	client, server end
	last           atomic.Uint32 // second of the last activity
	state          state
	held           bool // counted in carrier.held
	queued         bool // in loop.busy
}

// serve handles one connection from here to its end.
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

// dial connects to the next endpoint. last is the error of the previous one.
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
		case relay.ErrNoFiles: // not the endpoint's fault
			n.abort()
			return
		case relay.ErrNoRoom:
			n.search.Skip(step.Endpoint)
		default:
			n.search.Failed(n.carrier.Chooser, step.Endpoint)
		}
	}
	if last != relay.ErrNoRoom { // limits count those themselves
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
	if !n.carrier.KeepsClient(target) { // with the client's address, the source ports are separate
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

// hold waits until a front that drops gets an endpoint; false: too many connections wait.
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
	case !n.carrier.Chooser.Leads(n.from, n.endpoint):
		// An endpoint that lives may continue (the pod may only be unready, or drain); a dead one ends within seconds.
		if err := probe(int(n.server.fd)); err != nil {
			klog.V(2).InfoS("Cannot watch a connection to a removed endpoint", "endpoint", n.endpoint, "err", err)
		}
		if n.state == relaying {
			n.timer.stop() // it would restore the usual interval
		}
	}
}

// expired handles the timeout of the current state.
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

// connected checks the result of connecting.
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
	if open := n.carrier.Open(); open&0xff == 0 { // frequent enough, and rare enough to cost nothing
		n.carrier.Crowded(open, n.carrier.plane.ports)
	}
	n.loop.begin(&n.timer, probedFrom)
	n.server.ready(events)
}

// turn moves the available data, both ways.
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
		n.abort() // one side has failed: report it to the other
	case n.client.told && n.server.told:
		n.end()
	case more && !n.queued:
		n.queued = true
		n.loop.busy = append(n.loop.busy, n)
	}
}

// move copies the available data from one end to the other. more: it stopped only to give others their turn.
func (n *conn) move(from, to *end) (more bool, errno unix.Errno) {
	for range movesPerTurn {
		if errno := to.flush(); errno != 0 {
			return false, errno
		}
		switch {
		case to.blocked && from.failed:
			return false, unix.ECONNRESET // otherwise it would be noticed only after the blocked end accepts data again
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

// probe makes the kernel find out within seconds whether the peer of a connection is still alive.
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
