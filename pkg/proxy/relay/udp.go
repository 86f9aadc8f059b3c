package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// longSession is the number of a client's packets from which more is expected. A question and its answer need no long memory.
const longSession = 3

// udpSocket is one address of a UDP front. Each client gets a session: a socket of its own towards one endpoint, so that answers find
// their way back, and leave from this very address, which is what the client expects.
type udpSocket struct {
	front *routines
	conn  *net.UDPConn

	mu       sync.Mutex
	closed   bool
	sessions map[netip.AddrPort]*session
}

func openUDP(f *routines, addr netip.AddrPort) (socket, error) {
	conn, err := net.ListenUDP(network("udp", addr), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	r, err := newReceiver(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &udpSocket{front: f, conn: conn, sessions: map[netip.AddrPort]*session{}}
	f.counts.ledger.listens(1)
	f.work.Go(func() { s.receive(r) })
	return s, nil
}

// close ends the sessions too: their answers would have no way back.
func (s *udpSocket) close() {
	_ = s.conn.Close()
	s.front.counts.ledger.listens(-1)
	s.mu.Lock()
	s.closed = true
	sessions := make([]*session, 0, len(s.sessions))
	for _, one := range s.sessions {
		sessions = append(sessions, one)
	}
	s.mu.Unlock()
	for _, one := range sessions {
		one.abort()
	}
}

// receive passes on what clients send.
func (s *udpSocket) receive(r *receiver) {
	for {
		data, client, err := r.nextPacket()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error that a former answer met, such as a client that is gone
		}
		s.pass(client, data)
		r.done()
	}
}

// pass sends one packet to the client's endpoint. An endpoint that refused the packet before this one is given up, and this packet goes
// to another.
func (s *udpSocket) pass(client netip.AddrPort, data []byte) {
	for range maxDials {
		one := s.session(client)
		if one == nil {
			return
		}
		one.last.Store(time.Now().UnixNano())
		if one.packets.Add(1) == longSession {
			s.front.counts.ledger.settle(s.front.front, &one.member)
		}
		if _, err := one.server.Write(data); err == nil || !refused(err) {
			return
		}
		one.refuse()
	}
}

// session finds the client's session or makes one; nil: the packet is to be dropped.
func (s *udpSocket) session(client netip.AddrPort) *session {
	s.mu.Lock()
	one := s.sessions[client]
	s.mu.Unlock()
	if one != nil {
		return one
	}
	from := client.Addr().Unmap()
	if !s.front.route.Load().Allows(from) {
		return nil
	}
	target, ok := s.front.balancer.pick(from, nil)
	if !ok {
		return nil
	}
	if s.front.own.has(s.front.protocol, target) {
		klog.V(2).InfoS("Cannot reach an endpoint", "endpoint", target, "err", errOwnFront)
		return nil
	}
	ledger := s.front.counts.ledger
	one = &session{socket: s, client: client, endpoint: target}
	one.member.occupant = one
	one.last.Store(time.Now().UnixNano())
	gone, ok := ledger.enter(s.front.front, from, &one.member)
	letGo(gone)
	if !ok {
		return nil
	}
	server, err := net.DialUDP(network("udp", target), nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		ledger.leave(s.front.front, &one.member)
		if noFiles(err) { // no endpoint's fault
			letGo(ledger.out(err))
			return nil
		}
		klog.V(2).InfoS("Cannot reach an endpoint", "endpoint", target, "err", err)
		s.front.balancer.fail(target)
		return nil
	}
	s.mu.Lock()
	if one.server = server; s.closed || one.ended {
		s.mu.Unlock()
		ledger.leave(s.front.front, &one.member)
		_ = server.Close()
		return nil
	}
	s.sessions[client] = one
	s.mu.Unlock()
	s.front.counts.sessions.Inc()
	if !s.front.add(one) {
		one.abort()
		return nil
	}
	s.front.work.Go(one.answer)
	if !hasBackend(s.front.route.Load(), target) {
		one.abort() // the change came between choosing and adding; the next packet finds another
	}
	return one
}

// session is one client's exchange with one endpoint.
type session struct {
	socket   *udpSocket
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   *net.UDPConn // nil: not yet
	member   member
	ended    bool         // under the socket's lock
	last     atomic.Int64 // when a packet last passed, in nanoseconds
	packets  atomic.Int32 // from the client
}

func (o *session) target() netip.AddrPort { return o.endpoint }

// removed ends the session at once: the client's next packet goes to an endpoint that is there.
func (o *session) removed() { o.abort() }

func (o *session) abort() {
	o.socket.mu.Lock()
	o.ended = true
	server := o.server
	if o.socket.sessions[o.client] == o {
		delete(o.socket.sessions, o.client)
	}
	o.socket.mu.Unlock()
	o.socket.front.remove(o)
	if server != nil {
		_ = server.Close()
	}
	o.socket.front.counts.ledger.leave(o.socket.front.front, &o.member)
}

// seen implements occupant: when the session would end, so that a question goes before an exchange that goes on.
func (o *session) seen() uint32 { return secondsAt(time.Unix(0, o.last.Load()).Add(o.idle())) }

// evict implements occupant.
func (o *session) evict(any) { o.abort() }

// refuse gives the endpoint up because its host says that nobody listens.
func (o *session) refuse() {
	o.socket.front.balancer.fail(o.endpoint)
	o.abort()
}

// idle is how long the session may be silent. A question and its answer need no long memory.
func (o *session) idle() time.Duration {
	if o.packets.Load() < longSession {
		return min(shortUDPIdle, o.socket.front.cfg.UDPIdle)
	}
	return o.socket.front.cfg.UDPIdle
}

// answer passes back what the endpoint sends, until the session has been silent for too long.
func (o *session) answer() {
	defer o.abort()
	r, err := newReceiver(o.server)
	if err != nil {
		return
	}
	_ = o.server.SetReadDeadline(time.Now().Add(o.idle()))
	for {
		data, err := r.next()
		switch {
		case err == nil:
			o.last.Store(time.Now().UnixNano())
			_, _ = o.socket.conn.WriteToUDPAddrPort(data, o.client) // as lossy as the network
			r.done()
		case errors.Is(err, os.ErrDeadlineExceeded):
			end := time.Unix(0, o.last.Load()).Add(o.idle())
			if !end.After(time.Now()) {
				return
			}
			_ = o.server.SetReadDeadline(end)
		case refused(err):
			o.socket.front.balancer.fail(o.endpoint)
			return
		default:
			return
		}
	}
}
