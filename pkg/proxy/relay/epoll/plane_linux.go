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

// maxLoops is enough for any network card; each loop costs a thread, and each front an entry in each loop.
const maxLoops = 8

// unevenness is how many more connections than another a loop may have before it hands over new ones, which costs a
// wake-up.
const unevenness = 2

// Loops returns the number of loops of a Plane on a host with so many processors.
func Loops(processors int) int { return max(1, min(processors, maxLoops)) }

// New returns a NewPlane for Planes with that many loops, from 1 to 8. Each loop occupies one processor of Go's
// scheduler (GOMAXPROCS) while it waits for the next event, so the caller should add as many.
func New(loops int) relay.NewPlane {
	return func(shared *relay.Shared) relay.Plane { return newPlane(Loops(loops), shared) }
}

func newPlane(count int, shared *relay.Shared) *plane {
	return &plane{count: count, shared: shared}
}

// plane implements relay.Plane with loops on epoll. A TCP front listens in all of them, and a connection usually stays
// where it was accepted; a UDP front belongs to one loop. The loops start with the first socket.
type plane struct {
	shared *relay.Shared
	count  int
	loops  []*loop
	next   int     // of the loop of the next UDP front
	ports  int     // source ports that the kernel may choose
	lookup *lookup // nil: no front uses it
	bound  bool    // it cannot be used: each front has a socket
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

// carrier moves the data of one front in the loops.
type carrier struct {
	*relay.Front
	plane *plane
	count atomic.Int32 // of guests, so that a change runs in the loops only if there are some
	held  atomic.Int32 // connections that wait for an endpoint
	// guests lists, by loop, what arrived through this front. Only that loop accesses its list.
	guests [maxLoops]list
}

// guest is a connection or a UDP session in a loop.
type guest interface {
	changed() // the front has another Route
	abort()   // ends it immediately with a reset to both sides
}

// list is an intrusive doubly linked list of guests: any can leave at any time, and none needs more memory.
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

// expect counts a guest early: before the guest reads the Route, so that a change of the Route reaches it, and before
// it moves to another loop, so that closing the front waits for it.
func (c *carrier) expect() { c.count.Add(1) }

// enter adds an expected guest.
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

// tell calls a function for every guest and waits until that is done.
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

// evenly returns the loop for a new connection that l has accepted: l, unless another has clearly fewer. The kernel
// wakes the same loop again and again while that is idle, and connections can be long.
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
func (c *carrier) Listen(at relay.Place, silent relay.Silence) (relay.Socket, error) {
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

// open opens a socket to an endpoint, with the client's address if the front requires that and it is possible.
func (c *carrier) open(kind int, target netip.AddrPort, client netip.Addr) (int, unix.Errno) {
	if c.KeepsClient(target) && apart(client, target.Addr()) {
		if fd, errno := connectSocket(kind, target, client); errno == 0 {
			return fd, 0
		}
	}
	return connectSocket(kind, target, netip.Addr{})
}

// traits of a listening socket.
type traits struct {
	transparent bool // its address is not this host's
	silent      relay.Silence
}

// socket returns a new socket for the front at addr.
func (p *plane) socket(kind int, addr netip.AddrPort, is traits, prepare func(fd int) error) (fd int, err error) {
	family, sockaddr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()})
	if addr.Addr().Is4() {
		family, sockaddr = unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("cannot listen: %w", err)
	}
	if family == unix.AF_INET6 {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)) // IPv6 cannot bind an address that only a route makes local
	}
	if is.transparent {
		err = errors.Join(err, transparent(fd, addr.Addr().Is4()))
	}
	if is.silent != relay.Hears {
		err = errors.Join(err, silence(fd, is.silent, p.shared.Near.Ranges()))
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

// transparent lets a socket use an address that is not this host's. Accepted sockets inherit this.
func transparent(fd int, is4 bool) error {
	level, name := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if is4 {
		level, name = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	if errno := setOption(fd, level, name, 1); errno != 0 {
		return fmt.Errorf("cannot use an address that is not this host's: %w", errno)
	}
	return nil
}
