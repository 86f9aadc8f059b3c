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

	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// ProbeRemoved is how a connection to an endpoint that left the Route is watched: alive it may go on (the pod may only be unready, or
// drain), dead it ends within seconds.
var ProbeRemoved = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 5}

// ProbeTimeout ends a connection to such an endpoint whose data has not been acknowledged for so long.
const ProbeTimeout = 6 * time.Second

type tcpSocket struct {
	front    *routines
	listener *net.TCPListener
}

func openTCP(f *routines, addr netip.AddrPort) (Socket, error) {
	// Accepted sockets inherit keep-alive from the listener, so it need not be set on each.
	config := net.ListenConfig{KeepAlive: -1, Control: control(SetKeepAlive)}
	listener, err := config.Listen(f.ctx, network("tcp", addr), addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	s := &tcpSocket{f, listener.(*net.TCPListener)}
	f.Ledger.Listens(1)
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

func (s *tcpSocket) Close() {
	_ = s.listener.Close() // it fails only when closed already
	s.front.Ledger.Listens(-1)
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
	free := make(chan struct{})
	if NoFiles(err) {
		f.Ledger.Await(func() { close(free) })
		evict(f.Ledger.NoFiles(err))
	} else if f.Ledger.DueToLog() {
		klog.ErrorS(err, "Cannot accept connections; trying again shortly", "front", f.Chooser.Route().Front)
	}
	timer := time.NewTimer(FilesRest)
	defer timer.Stop()
	select {
	case <-free:
	case <-timer.C:
	case <-f.ctx.Done():
		return false
	}
	return true
}

// evict ends those that made room.
func evict(gone []*limits.Member) {
	for _, m := range gone {
		m.Occupant.Evict(nil)
	}
}

// visit is a TCP connection as the limits see it, from accept to its end.
type visit struct {
	member limits.Member
	last   atomic.Uint32

	mu             sync.Mutex
	client, server *net.TCPConn
	ended          bool
}

func (v *visit) Seen() uint32 { return v.last.Load() }
func (v *visit) touch()       { v.last.Store(limits.SecondsAt(time.Now())) }

func (v *visit) Evict(any) {
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
	err := errors.Join(c.server.SetKeepAliveConfig(ProbeRemoved), giveUpAfter(c.server, ProbeTimeout))
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
	f.Metrics.Accepted.Inc()
	if !f.Admits(from) {
		reset(client)
		return
	}
	v := &visit{client: client}
	v.member.Occupant = v
	v.touch()
	gone, ok := f.Enter(from, &v.member)
	evict(gone)
	if !ok {
		reset(client)
		return
	}
	defer f.Leave(&v.member)
	w := &waiting{client}
	if !f.add(w) {
		reset(client)
		return
	}
	server, endpoint, err := f.connect(from, &v.member)
	if err != nil {
		f.remove(w)
		if !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrNoFiles) { // those are counted by limit
			f.Metrics.Refused.Inc()
		}
		klog.V(2).InfoS("Connection refused: no endpoint answers", "client", from, "front", client.LocalAddr(), "err", err)
		reset(client)
		return
	}
	f.Established(&v.member)
	c := &connection{v, client, server, endpoint}
	ok = f.add(c)
	f.remove(w)
	if !ok || !v.serve(server) {
		f.remove(c)
		c.abort()
		return
	}
	if !f.Chooser.Leads(endpoint) {
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

// connect dials endpoints until one answers.
func (f *routines) connect(client netip.Addr, m *limits.Member) (*net.TCPConn, netip.AddrPort, error) {
	var search choose.Search
	last := ErrNoEndpoint
	for {
		step := search.Next(f.Chooser, client)
		switch {
		case step.Do == choose.Hold && f.hold():
			continue
		case step.Do != choose.Dial:
			return nil, netip.AddrPort{}, last
		}
		conn, err := f.dial(client, m, step)
		switch {
		case err == nil:
			return conn, step.Endpoint, nil
		case f.ctx.Err() != nil:
			return nil, step.Endpoint, f.ctx.Err()
		case errors.Is(err, ErrNoRoom):
			search.Skip(step.Endpoint)
		case NoFiles(err): // no endpoint's fault
			evict(f.Ledger.NoFiles(err))
			return nil, step.Endpoint, ErrNoFiles
		default:
			if noPortLeft(err) {
				f.Exhausted()
			}
			search.Failed(f.Chooser, step.Endpoint)
		}
		last = err
	}
}

// dial connects to one endpoint if there is room for that.
func (f *routines) dial(client netip.Addr, m *limits.Member, step choose.Step) (*net.TCPConn, error) {
	if f.IsOwn(step.Endpoint) {
		return nil, ErrOwnFront
	}
	gone, ok := f.Connect(client, m, step.Endpoint)
	evict(gone)
	if !ok {
		return nil, ErrNoRoom
	}
	conn, err := dial(f.ctx, step.Endpoint, step.Patience)
	if err != nil {
		f.Ledger.Disconnect(m)
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
	if route := f.Chooser.Route(); !route.Drop || f.held.Load() >= choose.MaxHeld {
		return len(route.Backends) > 0
	}
	f.held.Add(1)
	defer f.held.Add(-1)
	timer := time.NewTimer(choose.HoldTime)
	defer timer.Stop()
	select {
	case <-news:
		return true
	case <-timer.C:
	case <-f.ctx.Done():
	}
	return false
}
