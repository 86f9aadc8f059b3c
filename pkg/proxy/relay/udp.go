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

	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// udpSocket is one address of a UDP front. Each client has a session: a separate socket to one endpoint, so that
// replies find their way back and leave from the address that the client expects.
type udpSocket struct {
	front *routines
	conn  *net.UDPConn

	mu       sync.Mutex
	closed   bool
	sessions map[netip.AddrPort]*session
}

func openUDP(f *routines, addr netip.AddrPort) (Socket, error) {
	conn, err := net.ListenUDP(network("udp", addr), net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w%s", err, taken(err))
	}
	r, err := newReceiver(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &udpSocket{front: f, conn: conn, sessions: map[netip.AddrPort]*session{}}
	f.Ledger.Listens(1)
	f.work.Go(func() { s.receive(r) })
	return s, nil
}

// Close also ends the sessions, whose replies could no longer be sent.
func (s *udpSocket) Close() {
	_ = s.conn.Close()
	s.front.Ledger.Listens(-1)
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

// receive forwards packets from clients.
func (s *udpSocket) receive(r *receiver) {
	for {
		data, client, err := r.nextPacket()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error caused by an earlier reply, for example to a client that is gone
		}
		s.pass(client, data)
		r.done()
	}
}

// pass sends one packet to the client's endpoint. If an endpoint refused the previous packet, the session ends and this
// packet goes to another one.
func (s *udpSocket) pass(client netip.AddrPort, data []byte) {
	for range choose.MaxDials {
		one := s.session(client)
		if one == nil {
			return
		}
		one.last.Store(time.Now().UnixNano())
		if one.packets.Add(1) == LongSession {
			s.front.Established(&one.member)
		}
		if _, err := one.server.Write(data); err == nil || !refused(err) {
			return
		}
		one.refuse()
	}
}

// session returns the client's session, or creates one; nil: drop the packet.
func (s *udpSocket) session(client netip.AddrPort) *session {
	s.mu.Lock()
	one := s.sessions[client]
	s.mu.Unlock()
	if one != nil {
		return one
	}
	from := client.Addr().Unmap()
	target, err := s.front.Session(from)
	if err != nil {
		klog.V(2).InfoS("Packet dropped", "client", client, "front", s.front.Chooser.Route().Front, "err", err)
		return nil
	}
	one = &session{socket: s, client: client, endpoint: target}
	one.member.Occupant = one
	one.last.Store(time.Now().UnixNano())
	gone, ok := s.front.Enter(from, &one.member)
	evict(gone)
	if !ok {
		return nil
	}
	server, err := net.DialUDP(network("udp", target), nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		s.front.Leave(&one.member)
		if NoFiles(err) { // not the endpoint's fault
			evict(s.front.Ledger.NoFiles(err))
			return nil
		}
		klog.V(2).InfoS("Cannot reach an endpoint", "endpoint", target, "err", err)
		s.front.Chooser.Failed(target)
		return nil
	}
	if err := reportRefusals(server); err != nil { // a dead endpoint is then noticed by its silence
		klog.V(4).InfoS("Cannot detect refused UDP packets", "endpoint", target, "err", err)
	}
	s.mu.Lock()
	if one.server = server; s.closed || one.ended {
		s.mu.Unlock()
		s.front.Leave(&one.member)
		_ = server.Close()
		return nil
	}
	s.sessions[client] = one
	s.mu.Unlock()
	s.front.Metrics.Sessions.Inc()
	if !s.front.add(one) {
		one.abort()
		return nil
	}
	s.front.work.Go(one.answer)
	if !s.front.Chooser.Leads(from, target) {
		one.abort() // the Route changed between choosing and adding; the next packet uses another endpoint
	}
	return one
}

// session is one client's exchange with one endpoint.
type session struct {
	socket   *udpSocket
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   *net.UDPConn // nil: not yet
	member   limits.Member
	ended    bool         // protected by the socket's lock
	last     atomic.Int64 // time of the last packet, in nanoseconds
	packets  atomic.Int32 // from the client
}

func (o *session) ends() (netip.Addr, netip.AddrPort) { return o.client.Addr().Unmap(), o.endpoint }

// removed ends the session immediately: the client's next packet goes to an existing endpoint.
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
	o.socket.front.Leave(&o.member)
}

// Seen implements limits.Occupant. It returns when the session would end, so that a question is evicted before a
// continuing exchange.
func (o *session) Seen() uint32 { return limits.SecondsAt(time.Unix(0, o.last.Load()).Add(o.idle())) }

// Evict implements limits.Occupant.
func (o *session) Evict(any) { o.abort() }

// refuse ends the session because the endpoint's host reports that nothing listens.
func (o *session) refuse() {
	o.socket.front.Chooser.Failed(o.endpoint)
	o.abort()
}

func (o *session) idle() time.Duration { return o.socket.front.Idle(int(o.packets.Load())) }

// answer forwards replies from the endpoint until the session has been idle for too long.
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
			_, _ = o.socket.conn.WriteToUDPAddrPort(data, o.client) // no more reliable than the network
			r.done()
		case errors.Is(err, os.ErrDeadlineExceeded):
			end := time.Unix(0, o.last.Load()).Add(o.idle())
			if !end.After(time.Now()) {
				return
			}
			_ = o.server.SetReadDeadline(end)
		case refused(err):
			o.socket.front.Chooser.Failed(o.endpoint)
			return
		default:
			return
		}
	}
}
