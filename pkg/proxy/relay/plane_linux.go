package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
)

// maxLoops is enough for any network card; each loop costs a thread, and each front an entry in each.
const maxLoops = 8

// unevenness is by how many connections one loop may have more than another before it hands new ones over, which costs a wake-up.
const unevenness = 2

func newPlane() plane { return &loops{} }

// loops is the plane of Linux: loops on epoll, one for each processor. A TCP front listens in all of them, and a connection stays where
// it was accepted; a UDP front belongs to one. They start with the first front.
type loops struct {
	all    []*loop
	next   int     // loop of the next UDP front
	ports  int     // that the kernel may choose as a connection's source
	lookup *lookup // nil: no front is led
	bound  bool    // none can be: each has a socket
	ledger *ledger // of the first front
}

func (p *loops) start() error {
	if len(p.all) > 0 {
		return nil
	}
	p.ports = preparePorts()
	for i := range min(processors(), maxLoops) {
		l, err := newLoop(i)
		if err != nil {
			p.close()
			return err
		}
		l.ledger = p.ledger
		p.all = append(p.all, l)
		addProcessors(1)
		go l.run()
	}
	return nil
}

// added are processors of Go's scheduler (GOMAXPROCS) beyond the machine's, one for each loop: it keeps one while it waits for the next event, and
// everybody else has as many as without loops.
var added struct {
	sync.Mutex
	n int
}

func addProcessors(n int) {
	added.Lock()
	defer added.Unlock()
	added.n += n
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// processors are those of the machine that this program may use.
func processors() int {
	added.Lock()
	defer added.Unlock()
	return runtime.GOMAXPROCS(0) - added.n
}

func (p *loops) check() {
	if p.lookup != nil {
		p.lookup.check()
	}
}

func (p *loops) close() {
	if p.lookup != nil {
		p.lookup.close()
		p.lookup = nil
	}
	for _, l := range p.all {
		l.close()
		addProcessors(-1)
	}
	p.all = nil
}

func (p *loops) carry(f *front) carrier {
	if p.ledger == nil {
		p.ledger = f.counts.ledger
	}
	return &loopCarrier{front: f, loops: p}
}

// loopCarrier carries one front in loops.
type loopCarrier struct {
	*front
	loops *loops
	count atomic.Int32 // of guests, so that a change asks the loops only when there is somebody to tell
	held  atomic.Int32 // connections that wait for an endpoint
	// guests are in each loop what came in through this front there. Only that loop touches it.
	guests [maxLoops]list
}

// guest is a connection or a UDP session in a loop.
type guest interface {
	changed() // the front has another Route
	abort()   // ends it at once, telling both sides
}

// list is a doubly linked list of guests through their own entries: any can leave at once, and none needs memory of its own.
type list struct{ first *entry }

type entry struct {
	guest          guest
	previous, next *entry
}

func (l *list) add(e *entry) {
	e.previous, e.next = nil, l.first
	if l.first != nil {
		l.first.previous = e
	}
	l.first = e
}

func (l *list) remove(e *entry) {
	if e.previous != nil {
		e.previous.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.previous = e.previous
	}
	e.previous, e.next = nil, nil
}

// expect counts a guest: before it reads the Route, so that who changes that sees one or the other, and before it is on its way to another
// loop, so that who ends the front waits for it.
func (c *loopCarrier) expect() { c.count.Add(1) }

// enter takes in a guest that was expected.
func (c *loopCarrier) enter(l *loop, e *entry) { c.guests[l.index].add(e) }

func (c *loopCarrier) leave(l *loop, e *entry) {
	c.guests[l.index].remove(e)
	c.count.Add(-1)
}

func (c *loopCarrier) open() int { return int(c.count.Load()) }
func (c *loopCarrier) changed()  { c.tell(guest.changed) }
func (c *loopCarrier) close()    { c.tell(guest.abort) }

// tell calls something for every guest and returns when that is done.
func (c *loopCarrier) tell(call func(guest)) {
	if c.count.Load() == 0 {
		return
	}
	c.loops.each(func(l *loop) {
		l.telling = true
		for e := c.guests[l.index].first; e != nil; {
			next := e.next
			call(e.guest)
			e = next
		}
		l.telling = false
	})
}

// evenly is the loop for a new connection that l has accepted: l, unless another has clearly less to do. The kernel wakes the same loop
// again and again as long as that is idle, and connections stay for long.
func (p *loops) evenly(l *loop) *loop {
	best := l
	for _, other := range p.all {
		if other.conns.Load()+unevenness < best.conns.Load() {
			best = other
		}
	}
	return best
}

// each runs do in every loop and waits for all of them.
func (p *loops) each(do func(l *loop)) {
	done := make(chan struct{}, len(p.all))
	for _, l := range p.all {
		l.post(func() { do(l); done <- struct{}{} })
	}
	for range p.all {
		<-done
	}
}

func (c *loopCarrier) listen(at place, silent bool) (socket, error) {
	if err := c.loops.start(); err != nil {
		return nil, err
	}
	if c.protocol == v1.ProtocolUDP {
		return c.listenUDP(at, silent)
	}
	if at.ours {
		if s := c.loops.lead(at, silent, c); s != nil {
			return s, nil
		}
	}
	return c.loops.listenTCP(at.addr, traits{transparent: at.port, silent: silent}, func(int) *loopCarrier { c.expect(); return c }, nil)
}

// keepsClient says whether endpoints may see the client's address.
func (c *loopCarrier) keepsClient() bool { return c.keep.Load() && c.route.Load().KeepClient }

// connect opens a socket towards an endpoint, with the client's address where the front asks for that and it can be.
func (c *loopCarrier) connect(kind int, target netip.AddrPort, client netip.Addr) (int, unix.Errno) {
	if c.keepsClient() && apart(client, target.Addr()) {
		if fd, errno := connectSocket(kind, target, client); errno == 0 {
			return fd, 0
		}
	}
	return connectSocket(kind, target, netip.Addr{})
}

// traits of a socket that listens.
type traits struct {
	transparent bool // its address is not this host's
	silent      bool
}

// bound returns a new socket of the front's own at addr.
func bound(kind int, addr netip.AddrPort, is traits, prepare func(fd int) error) (fd int, err error) {
	family, sockaddr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()})
	if addr.Addr().Is4() {
		family, sockaddr = unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("cannot listen: %w", err)
	}
	if family == unix.AF_INET6 {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)) // an address that only a route makes local is none to IPv6's bind
	}
	if is.transparent {
		err = errors.Join(err, transparent(fd, addr.Addr().Is4()))
	}
	if is.silent {
		err = errors.Join(err, silence(fd, true))
	}
	if err = errors.Join(err, prepare(fd)); err == nil {
		err = unix.Bind(fd, sockaddr)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return fd, nil
}

// transparent lets a socket have an address that is not this host's, and speak from it. What it accepts inherits that.
func transparent(fd int, is4 bool) error {
	level, name := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if is4 {
		level, name = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	if errno := setOption(fd, level, name, 1); errno != 0 {
		return fmt.Errorf("cannot have an address that is not this host's: %w", errno)
	}
	return nil
}

// silence has the kernel drop what comes to a socket before it looks at it, by a filter that takes nothing: no SYN is answered, and no packet refused.
func silence(fd int, on bool) error {
	if !on {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
}
