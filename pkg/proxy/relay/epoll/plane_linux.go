package epoll

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// maxLoops is enough for any network card; each loop costs a thread, and each front an entry in each.
const maxLoops = 8

// unevenness is by how many connections one loop may have more than another before it hands new ones over, which costs a wake-up.
const unevenness = 2

// Loops is how many loops a Plane has on a host with so many processors.
func Loops(processors int) int { return max(1, min(processors, maxLoops)) }

// New returns a maker of Planes with that many loops, from 1 to 8. Each loop keeps one processor of Go's scheduler (GOMAXPROCS) while it waits for the
// next event, so the caller should add as many.
func New(loops int) relay.NewPlane {
	return func(shared *relay.Shared) relay.Plane { return newPlane(Loops(loops), shared) }
}

func newPlane(count int, shared *relay.Shared) *plane {
	return &plane{count: count, shared: shared}
}

// plane implements relay.Plane: loops on epoll. A TCP front listens in all of them, and a connection stays where it was accepted; a UDP front
// belongs to one. They start with the first socket.
type plane struct {
	shared *relay.Shared
	count  int
	loops  []*loop
	next   int     // loop of the next UDP front
	ports  int     // that the kernel may choose as a connection's source
	lookup *lookup // nil: no front is led
	bound  bool    // none can be: each has a socket
}

func (p *plane) start() error {
	if len(p.loops) > 0 {
		return nil
	}
	p.ports = limits.SourcePorts()
	for i := range p.count {
		l, err := newLoop(i, p.shared.Ledger)
		if err != nil {
			p.Close()
			return err
		}
		p.loops = append(p.loops, l)
		go l.run() // close waits for it
	}
	return nil
}

// Check implements relay.Plane.
func (p *plane) Check() {
	if p.lookup != nil {
		p.lookup.check()
	}
}

// Close implements relay.Plane.
func (p *plane) Close() {
	if p.lookup != nil {
		p.lookup.close()
		p.lookup = nil
	}
	for _, l := range p.loops {
		l.close()
	}
	p.loops = nil
}

// Carry implements relay.Plane.
func (p *plane) Carry(f *relay.Front) relay.Carrier { return &carrier{Front: f, plane: p} }

// carrier carries one front in loops.
type carrier struct {
	*relay.Front
	plane *plane
	count atomic.Int32 // of guests, so that a change asks the loops only when there are some
	held  atomic.Int32 // connections that wait for an endpoint
	// guests are in each loop what came in through this front there. Only that loop touches it.
	guests [maxLoops]list
}

// guest is a connection or a UDP session in a loop.
type guest interface {
	changed() // the front has another Route
	abort()   // ends it now, telling both sides
}

// list is a doubly linked list of guests through their own entries: any can leave at any time, and none needs more memory.
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
func (c *carrier) expect() { c.count.Add(1) }

// enter adds a guest that was expected.
func (c *carrier) enter(l *loop, e *entry) { c.guests[l.index].add(e) }

func (c *carrier) leave(l *loop, e *entry) {
	c.guests[l.index].remove(e)
	c.count.Add(-1)
}

// Open implements relay.Carrier.
func (c *carrier) Open() int { return int(c.count.Load()) }

// Changed implements relay.Carrier.
func (c *carrier) Changed() { c.tell(guest.changed) }

// Close implements relay.Carrier.
func (c *carrier) Close() { c.tell(guest.abort) }

// tell calls something for every guest and returns when that is done.
func (c *carrier) tell(call func(guest)) {
	if c.count.Load() == 0 {
		return
	}
	c.plane.each(func(l *loop) {
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
func (p *plane) evenly(l *loop) *loop {
	best := l
	for _, other := range p.loops {
		if other.conns.Load()+unevenness < best.conns.Load() {
			best = other
		}
	}
	return best
}

// each runs do in every loop and waits for all of them.
func (p *plane) each(do func(l *loop)) {
	done := make(chan struct{}, len(p.loops))
	for _, l := range p.loops {
		l.post(func() { do(l); done <- struct{}{} })
	}
	for range p.loops {
		<-done
	}
}

// Listen implements relay.Carrier.
func (c *carrier) Listen(at relay.Place, silent bool) (relay.Socket, error) {
	if err := c.plane.start(); err != nil {
		return nil, err
	}
	if c.Protocol == v1.ProtocolUDP {
		return c.listenUDP(at, silent)
	}
	if at.Ours {
		if s := c.plane.lead(at, silent, c); s != nil {
			return s, nil
		}
	}
	return c.plane.listenTCP(at.Addr, traits{transparent: at.Port, silent: silent}, func(int) *carrier { c.expect(); return c }, nil)
}

// open opens a socket towards an endpoint, with the client's address where the front asks for that and it can be.
func (c *carrier) open(kind int, target netip.AddrPort, client netip.Addr) (int, unix.Errno) {
	if c.KeepsClient() && apart(client, target.Addr()) {
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
