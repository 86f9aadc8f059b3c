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

// ProbeRemoved is the keep-alive of a connection to an endpoint that left the Route: a live one may continue (the pod
// may only be unready, or drain), a dead one ends within seconds.
var ProbeRemoved = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 5}

// ProbeTimeout ends a connection to such an endpoint when data has not been acknowledged for so long.
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
		return nil, fmt.Errorf("cannot listen: %w%s", err, taken(err))
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

// control wraps a socket option for net.ListenConfig.
func control(set func(fd uintptr) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var inner error
		return errors.Join(raw.Control(func(fd uintptr) { inner = set(fd) }), inner)
	}
}

func (s *tcpSocket) Close() {
	_ = s.listener.Close() // it fails only if closed already
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

// rest waits after an error of accept, until a descriptor is free if there was none; false: the front is closed.
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

// evict ends the members that must make room.
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

// serve records the connection to the endpoint; false: the visit has ended already.
func (v *visit) serve(server *net.TCPConn) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.server = server
	return !v.ended
}

// connection connects a client and an endpoint.
type connection struct {
	visit          *visit
	client, server *net.TCPConn
	from           netip.Addr
	endpoint       netip.AddrPort
}

func (c *connection) ends() (netip.Addr, netip.AddrPort) { return c.from, c.endpoint }

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

// reset closes a connection with a reset instead of an orderly end, which a client would treat as an empty response.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// waiting is a client that has no endpoint yet.
type waiting struct{ client *net.TCPConn }

func (w *waiting) ends() (netip.Addr, netip.AddrPort) { return netip.Addr{}, netip.AddrPort{} }
func (w *waiting) abort()                             { reset(w.client) }
func (w *waiting) removed()                           {}

// serveTCP handles one connection from accept to its end.
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
		if !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrNoFiles) { // limits count those themselves
			f.Metrics.Refused.Inc()
		}
		klog.V(2).InfoS("Connection refused: no endpoint answers", "client", from, "front", client.LocalAddr(), "err", err)
		reset(client)
		return
	}
	f.Established(&v.member)
	c := &connection{v, client, server, from, endpoint}
	ok = f.add(c)
	f.remove(w)
	if !ok || !v.serve(server) {
		f.remove(c)
		c.abort()
		return
	}
	if !f.Chooser.Leads(from, endpoint) {
		c.removed() // the Route changed between connecting and adding
	}
	c.run()
	f.remove(c)
}

// run copies both ways until both sides have ended, or until one fails, which it passes on as a reset.
func (c *connection) run() {
	var back sync.WaitGroup
	back.Go(func() { c.pump(c.client, c.server) })
	c.pump(c.server, c.client)
	back.Wait()
	_ = c.client.Close()
	_ = c.server.Close()
}

// pump copies one way, and passes on the end of from as a half-close.
func (c *connection) pump(to, from *net.TCPConn) {
	if err := pump(to, from, c.visit.touch); err != nil || to.CloseWrite() != nil {
		c.abort()
	}
}

// connect dials endpoints until one responds.
func (f *routines) connect(client netip.Addr, m *limits.Member) (*net.TCPConn, netip.AddrPort, error) {
	var search choose.Search
	last := ErrNoEndpoint
	for {
		step := search.Next(f.Chooser, client)
		switch {
		case step.Do == choose.Hold && f.hold(client):
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
		case NoFiles(err): // not the endpoint's fault
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

// dial connects to one endpoint if there is room for the connection.
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
	dialer := net.Dialer{Timeout: timeout, Control: control(func(fd uintptr) error {
		if err := sharePort(fd); err != nil {
			klog.V(4).InfoS("Source ports are not shared between endpoints", "err", err)
		}
		return nil
	})}
	conn, err := dialer.DialTCP(ctx, network("tcp", target), netip.AddrPort{}, target)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to endpoint: %w", err)
	}
	return conn, nil
}

// hold waits until a front that drops gets an endpoint; false: it did not.
func (f *routines) hold(client netip.Addr) bool {
	news := f.news.Next()
	if !f.Chooser.Route().Drop || f.held.Load() >= choose.MaxHeld {
		return len(f.Chooser.Backends(client)) > 0
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
