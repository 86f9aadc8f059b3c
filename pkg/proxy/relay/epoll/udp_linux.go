package epoll

import (
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// batchSize is the maximum number of packets in one call.
const batchSize = 32

// udpSocket is one address of a UDP front, in the one loop to which it belongs. Each client has a session: a separate
// socket to one endpoint, so that replies find their way back and leave from the address that the client expects.
type udpSocket struct {
	carrier  *carrier
	loop     *loop
	fd       int
	refuses  bool // its address is not local, so the kernel refuses nothing there
	sessions map[netip.AddrPort]*session
}

func (c *carrier) listenUDP(at relay.Place, silent relay.Silence) (relay.Socket, error) {
	fd, err := c.plane.socket(unix.SOCK_DGRAM, at.Addr, traits{transparent: at.Port, silent: silent}, func(int) error { return nil })
	if err != nil {
		return nil, err
	}
	c.plane.next++
	l := c.plane.loops[c.plane.next%len(c.plane.loops)]
	s := &udpSocket{carrier: c, loop: l, fd: fd, refuses: at.Port, sessions: map[netip.AddrPort]*session{}}
	watched := make(chan error)
	l.post(func() { watched <- l.watch(fd, unix.EPOLLIN, s) })
	if err := <-watched; err != nil {
		closeSocket(fd)
		return nil, err
	}
	c.Ledger.Listens(1)
	return s, nil
}

// Silence implements relay.Silencer.
func (s *udpSocket) Silence(towards relay.Silence) error {
	return silence(s.fd, towards, s.carrier.Near.Ranges())
}

// Close also ends the sessions, whose replies could no longer be sent.
func (s *udpSocket) Close() {
	closed := make(chan struct{})
	s.loop.post(func() {
		s.loop.packets.flush()
		s.loop.shut(s.fd)
		for _, one := range s.sessions {
			one.abort()
		}
		close(closed)
	})
	<-closed
	s.loop.ledger.Listens(-1)
}

// ready forwards packets from clients.
func (s *udpSocket) ready(uint32) {
	in := s.loop.packets.received()
	n, errno := in.receive(s.fd)
	if errno != 0 {
		return // an error caused by an earlier reply, for example to a client that is gone
	}
	for i := range n {
		s.pass(addrOf(&in.names[i]), &in.names[i], in.buffers[i][:in.headers[i].n])
	}
}

// pass sends one packet to the client's endpoint. If an endpoint refused the previous packet, the session ends and this
// packet goes to another one.
func (s *udpSocket) pass(client netip.AddrPort, name *unix.RawSockaddrAny, data []byte) {
	for range choose.MaxDials {
		one := s.sessions[client]
		if one == nil {
			if one = s.begin(client, name); one == nil {
				return
			}
		}
		if one.packets < relay.LongSession {
			if one.packets++; one.packets == relay.LongSession {
				s.carrier.Established(&one.member)
			}
		}
		one.renew()
		if _, errno := send(int(one.fd), data); errno != unix.ECONNREFUSED {
			return // no more reliable than the network
		}
		one.refuse()
	}
}

// begin creates a session for a client; nil: drop the packet.
func (s *udpSocket) begin(client netip.AddrPort, name *unix.RawSockaddrAny) *session {
	one := &session{socket: s, client: client, fd: -1}
	one.entry.guest, one.timer.owner, one.member.Occupant = one, one, one
	s.carrier.expect()
	s.carrier.enter(s.loop, &one.entry)
	if err := one.open(name); err != nil {
		s.carrier.leave(s.loop, &one.entry)
		if route := s.carrier.Chooser.Route(); s.refuses && len(route.Backends) == 0 && !route.Drop {
			s.loop.unreachable(s.fd, client)
		}
		klog.V(2).InfoS("Packet dropped", "client", client, "front", s.carrier.Chooser.Route().Front, "err", err)
		return nil
	}
	s.sessions[client] = one
	s.carrier.Metrics.Sessions.Inc()
	return one
}

// session is one client's exchange with one endpoint.
type session struct {
	socket   *udpSocket
	entry    entry
	member   limits.Member
	timer    timer
	until    atomic.Uint32 // second in which it would end
	client   netip.AddrPort
	endpoint netip.AddrPort
	name     unix.RawSockaddrInet6 // of the client
	fd       int32
	packets  uint8 // from the client, counted up to relay.LongSession
}

// open chooses the endpoint and opens the socket.
func (o *session) open(name *unix.RawSockaddrAny) error {
	c, from := o.socket.carrier, o.client.Addr().Unmap()
	target, err := c.Session(from)
	if err != nil {
		return err
	}
	if !o.admit() {
		return relay.ErrNoRoom
	}
	l := o.socket.loop
	fd, errno := c.open(unix.SOCK_DGRAM, target, from)
	if errno != 0 {
		c.Leave(&o.member)
	}
	switch {
	case relay.NoFiles(errno):
		l.evict(l.ledger.NoFiles(errno))
		return relay.ErrNoFiles
	case errno == unix.EAGAIN: // no source port
		c.Exhausted()
		return errno
	case errno != 0:
		c.Chooser.Failed(target)
		return errno
	}
	if err := l.watch(fd, unix.EPOLLIN, o); err != nil {
		closeSocket(fd)
		c.Leave(&o.member)
		return err
	}
	o.endpoint, o.fd, o.name = target, int32(fd), *(*unix.RawSockaddrInet6)(unsafe.Pointer(name))
	return nil
}

// renew restarts the idle timer.
func (o *session) renew() {
	o.socket.loop.begin(&o.timer, o.socket.carrier.Idle(int(o.packets)))
	if until := limits.SecondsAt(o.timer.at); o.until.Load() != until {
		o.until.Store(until)
	}
}

// ready forwards replies from the endpoint.
func (o *session) ready(uint32) {
	switch errno := o.socket.loop.packets.answer(o); errno {
	case 0:
		o.renew()
	case unix.ECONNREFUSED:
		o.socket.loop.unreachable(o.socket.fd, o.client)
		o.refuse()
	case unix.EAGAIN:
	default:
		o.abort()
	}
}

// changed implements guest. If its endpoint is gone, the client's next packet starts a session with another.
func (o *session) changed() {
	if !o.socket.carrier.Chooser.Leads(o.client.Addr().Unmap(), o.endpoint) {
		o.abort()
	}
}

func (o *session) expired() { o.abort() }

// refuse ends the session because the endpoint's host reports that nothing listens.
func (o *session) refuse() {
	o.socket.carrier.Chooser.Failed(o.endpoint)
	o.abort()
}

// abort implements guest.
func (o *session) abort() {
	if o.fd < 0 {
		return
	}
	o.timer.stop()
	o.socket.loop.shut(int(o.fd))
	o.fd = -1
	delete(o.socket.sessions, o.client)
	o.socket.carrier.Leave(&o.member)
	o.socket.carrier.leave(o.socket.loop, &o.entry)
}

// packets holds a loop's packets: one batch of received ones, and one of replies that wait to be sent together.
type packets struct {
	in, out *batch
	socket  int // socket from which to send out
	waiting int // number of packets in out
}

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	n      uint32
}

// batch holds the arguments of recvmmsg and sendmmsg. Most of it is buffers, which cost memory only where packets have
// filled them.
type batch struct {
	headers [batchSize]message
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrAny
	buffers [batchSize][bufferSize]byte
}

func newBatch() *batch {
	b := &batch{}
	for i := range batchSize {
		b.vectors[i].Base = &b.buffers[i][0]
		b.headers[i].header.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		b.headers[i].header.Iov = &b.vectors[i]
		b.headers[i].header.SetIovlen(1)
	}
	return b
}

func (p *packets) received() *batch {
	if p.in == nil {
		p.in = newBatch()
	}
	return p.in
}

// receive fills the batch with the available packets.
func (b *batch) receive(fd int) (int, unix.Errno) {
	for i := range batchSize {
		b.vectors[i].SetLen(bufferSize)
		b.headers[i].header.Namelen = unix.SizeofSockaddrAny
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// answer reads one packet for a session's client and adds it to the replies.
func (p *packets) answer(o *session) unix.Errno {
	if p.out == nil {
		p.out = newBatch()
	}
	if p.waiting == batchSize || p.waiting > 0 && p.socket != o.socket.fd {
		p.flush()
	}
	i := p.waiting
	n, errno := receive(int(o.fd), p.out.buffers[i][:])
	if errno != 0 {
		return errno
	}
	*(*unix.RawSockaddrInet6)(unsafe.Pointer(&p.out.names[i])) = o.name
	p.out.headers[i].header.Namelen = unix.SizeofSockaddrInet6
	if o.name.Family == unix.AF_INET {
		p.out.headers[i].header.Namelen = unix.SizeofSockaddrInet4
	}
	p.out.vectors[i].SetLen(n)
	p.socket = o.socket.fd
	p.waiting++
	return 0
}

// flush sends the replies. What the kernel does not accept is lost, as it could be in any network.
func (p *packets) flush() {
	for from := 0; from < p.waiting; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(p.socket), uintptr(unsafe.Pointer(&p.out.headers[from])), uintptr(p.waiting-from),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != 0 {
			n = 1 // the first of them failed
		}
		from += int(n)
	}
	p.waiting = 0
}
