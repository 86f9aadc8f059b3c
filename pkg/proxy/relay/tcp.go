package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const (
	// dialTimeout is the patience with one endpoint while others are left to try, lastDialTimeout with the last.
	dialTimeout     = time.Second
	lastDialTimeout = 10 * time.Second
	maxDials        = 5
	// A connection to a front that drops is held for holdTime in case an endpoint comes, as the retransmitted SYN of a dropped one
	// would find it; at most maxHeld of a front.
	holdTime = 30 * time.Second
	maxHeld  = 256
)

// probeRemoved is how a connection to an endpoint that left the Route is watched: alive it may go on (the pod may only be unready, or
// drain), dead it ends within seconds.
var probeRemoved = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 5}

const probeTimeout = 6 * time.Second

type tcpSocket struct {
	front    *routines
	listener *net.TCPListener
}

func openTCP(f *routines, addr netip.AddrPort) (socket, error) {
	// Accepted sockets inherit keep-alive from the listener, so it need not be set on each.
	config := net.ListenConfig{KeepAlive: -1, Control: control(setKeepAlive)}
	listener, err := config.Listen(f.ctx, network("tcp", addr), addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	s := &tcpSocket{f, listener.(*net.TCPListener)}
	f.counts.ledger.listens(1)
	f.work.Go(s.accept)
	return s, nil
}

func network(protocol string, addr netip.AddrPort) string {
	if addr.Addr().Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}

// control wraps a socket option as net.ListenConfig wants it.
func control(set func(fd uintptr) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var inner error
		return errors.Join(raw.Control(func(fd uintptr) { inner = set(fd) }), inner)
	}
}

func (s *tcpSocket) close() {
	_ = s.listener.Close() // it fails only when closed already
	s.front.counts.ledger.listens(-1)
}

func (s *tcpSocket) accept() {
	for {
		client, err := s.listener.AcceptTCP()
		if err == nil {
			s.front.work.Go(func() { s.front.serveTCP(client) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if !s.front.rest(err) {
			return
		}
	}
}

// rest waits after an error of accept, until a descriptor is free where there was none; false: the front is closed.
func (f *routines) rest(err error) bool {
	ledger := f.counts.ledger
	free := make(chan struct{})
	if noFiles(err) {
		ledger.await(func() { close(free) })
		letGo(ledger.out(err))
	} else if ledger.due(saying{cause: noLimit}) {
		klog.ErrorS(err, "Cannot accept connections for a while", "front", f.route.Load().Front)
	}
	timer := time.NewTimer(filesRest)
	defer timer.Stop()
	select {
	case <-free:
	case <-timer.C:
	case <-f.ctx.Done():
		return false
	}
	return true
}

// letGo ends those who made room.
func letGo(gone []*member) {
	for _, m := range gone {
		m.occupant.evict(nil)
	}
}

// visit is a TCP connection as the limits see it, from accept to its end.
type visit struct {
	member member
	last   atomic.Uint32

	mu             sync.Mutex
	client, server *net.TCPConn
	ended          bool
}

func (v *visit) seen() uint32 { return v.last.Load() }
func (v *visit) touch()       { v.last.Store(secondsAt(time.Now())) }

func (v *visit) evict(any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	reset(v.client)
	if v.server != nil {
		reset(v.server)
	}
}

// serve notes the endpoint's connection; false: the visit has been ended.
func (v *visit) serve(server *net.TCPConn) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.server = server
	return !v.ended
}

// connection joins a client and an endpoint.
type connection struct {
	visit          *visit
	client, server *net.TCPConn
	endpoint       netip.AddrPort
}

func (c *connection) target() netip.AddrPort { return c.endpoint }

// abort sends a reset to both sides.
func (c *connection) abort() {
	reset(c.client)
	reset(c.server)
}

func (c *connection) removed() {
	err := errors.Join(c.server.SetKeepAliveConfig(probeRemoved), giveUpAfter(c.server, probeTimeout))
	if err != nil && !errors.Is(err, net.ErrClosed) {
		klog.V(2).InfoS("Cannot watch a connection to a removed endpoint", "endpoint", c.endpoint, "err", err)
	}
}

// reset closes a connection with a reset instead of an orderly end, which a client would take for an empty answer.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// waiting is a client that has no endpoint yet.
type waiting struct{ client *net.TCPConn }

func (w *waiting) target() netip.AddrPort { return netip.AddrPort{} }
func (w *waiting) abort()                 { reset(w.client) }
func (w *waiting) removed()               {}

// serveTCP carries one connection from accept to its end.
func (f *routines) serveTCP(client *net.TCPConn) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	f.counts.accepted.Inc()
	if !f.route.Load().Allows(from) {
		reset(client)
		return
	}
	v := &visit{client: client}
	v.member.occupant = v
	v.touch()
	gone, ok := f.counts.ledger.enter(f.front, from, &v.member)
	letGo(gone)
	if !ok {
		reset(client)
		return
	}
	defer f.counts.ledger.leave(f.front, &v.member)
	w := &waiting{client}
	if !f.add(w) {
		reset(client)
		return
	}
	server, endpoint, err := f.connect(from, &v.member)
	if err != nil {
		f.remove(w)
		if !errors.Is(err, errNoRoom) && !errors.Is(err, errNoFiles) { // those are counted by limit
			f.counts.refused.Inc()
		}
		klog.V(2).InfoS("Connection refused: no endpoint answers", "client", from, "front", client.LocalAddr(), "err", err)
		reset(client)
		return
	}
	f.counts.ledger.settle(f.front, &v.member)
	c := &connection{v, client, server, endpoint}
	ok = f.add(c)
	f.remove(w)
	if !ok || !v.serve(server) {
		f.remove(c)
		c.abort()
		return
	}
	if !hasBackend(f.route.Load(), endpoint) {
		c.removed() // the change came between connecting and adding
	}
	c.run()
	f.remove(c)
}

// run copies both ways until both sides have ended, or one has failed, which is passed on as a reset.
func (c *connection) run() {
	var back sync.WaitGroup
	back.Go(func() { c.pump(c.client, c.server) })
	c.pump(c.server, c.client)
	back.Wait()
	_ = c.client.Close()
	_ = c.server.Close()
}

// pump copies one way; the end of from is passed on as a half-close.
func (c *connection) pump(to, from *net.TCPConn) {
	if err := pump(to, from, c.visit.touch); err != nil || to.CloseWrite() != nil {
		c.abort()
	}
}

// connect dials endpoints until one answers. No byte of the client has been passed on before, so any of them will do.
func (f *routines) connect(client netip.Addr, m *member) (*net.TCPConn, netip.AddrPort, error) {
	var tried []netip.AddrPort
	var last error
	for len(tried) < maxDials {
		target, ok := f.balancer.pick(client, tried)
		if !ok {
			if len(tried) > 0 || !f.hold() {
				break
			}
			continue
		}
		timeout := dialTimeout
		if route := f.route.Load(); len(tried)+1 >= min(maxDials, len(route.Backends)) {
			timeout = lastDialTimeout
		}
		conn, err := f.dial(client, m, target, timeout)
		if err == nil {
			return conn, target, nil
		}
		if f.ctx.Err() != nil {
			return nil, target, f.ctx.Err()
		}
		if errors.Is(err, errNoRoom) {
			tried, last = append(tried, target), err
			continue
		}
		if noFiles(err) { // no endpoint's fault
			letGo(f.counts.ledger.out(err))
			return nil, target, errNoFiles
		}
		if noPortLeft(err) {
			f.exhausted()
		}
		f.balancer.fail(target)
		tried, last = append(tried, target), err
	}
	if last == nil {
		last = errNoEndpoint
	}
	return nil, netip.AddrPort{}, last
}

// dial connects to one endpoint if there is room for that.
func (f *routines) dial(client netip.Addr, m *member, target netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	if f.own.has(f.protocol, target) {
		return nil, errOwnFront
	}
	gone, ok := f.counts.ledger.lead(f.front, client, m, target)
	letGo(gone)
	if !ok {
		return nil, errNoRoom
	}
	conn, err := dial(f.ctx, target, timeout)
	if err != nil {
		f.counts.ledger.unlead(m)
	}
	return conn, err
}

func dial(ctx context.Context, target netip.AddrPort, timeout time.Duration) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialTCP(ctx, network("tcp", target), netip.AddrPort{}, target)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to endpoint: %w", err)
	}
	return conn, nil
}

// hold waits for a front that drops to get an endpoint; false: it did not.
func (f *routines) hold() bool {
	news := f.next()
	if route := f.route.Load(); !route.Drop || f.held.Load() >= maxHeld {
		return len(route.Backends) > 0
	}
	f.held.Add(1)
	defer f.held.Add(-1)
	timer := time.NewTimer(holdTime)
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C:
	case <-f.ctx.Done():
	}
	return false
}
