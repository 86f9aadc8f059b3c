package sctptest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRefused says that the network answered that nothing is there; ErrSilent that it did not answer.
var (
	ErrRefused = errors.New("refused")
	ErrSilent  = errors.New("silent")
)

const (
	again   = 50 * time.Millisecond // between two packets without an answer
	patient = 15                    // packets without an answer until a peer is silent
)

// rawSocket is a raw socket for SCTP of one family, in the network namespace of the thread that opened it.
type rawSocket struct {
	fd   int
	four bool
}

func open(four bool) (*rawSocket, error) {
	family := unix.AF_INET6
	if four {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	wait := unix.NsecToTimeval(int64(again))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &rawSocket{fd, four}, nil
}

func sockaddr(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Addr: addr.As16()}
}

func addrOf(from unix.Sockaddr) netip.Addr {
	switch s := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(s.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(s.Addr)
	}
	return netip.Addr{}
}

// receive returns the next packet; unix.EAGAIN after a while without one.
func (s *rawSocket) receive() (*packet, netip.Addr, error) {
	buffer := make([]byte, 2048)
	n, from, err := unix.Recvfrom(s.fd, buffer, 0)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	buffer = buffer[:n]
	if s.four && n > 0 { // such a socket shows the header of IPv4
		buffer = buffer[min(int(buffer[0]&0xf)*4, n):]
	}
	p, err := parse(buffer)
	return p, addrOf(from), err
}

// Serve answers clients at addresses of the thread's network namespace, until the test ends. Clients learn name.
func Serve(t *testing.T, name string, addrs ...netip.AddrPort) {
	t.Helper()
	var running sync.WaitGroup
	var ended atomic.Bool
	t.Cleanup(func() { ended.Store(true); running.Wait() })
	for _, addr := range addrs {
		s, err := open(addr.Addr().Is4())
		if err == nil {
			if err = unix.Bind(s.fd, sockaddr(addr.Addr())); err != nil {
				unix.Close(s.fd)
			}
		}
		if err != nil {
			t.Fatalf("cannot serve SCTP at %s: %v", addr, err)
		}
		running.Go(func() {
			defer unix.Close(s.fd)
			for !ended.Load() {
				p, client, err := s.receive()
				if err != nil {
					if errors.Is(err, errChecksum) {
						t.Errorf("%s got a packet: %v", name, err)
					}
					continue
				}
				if p.to != addr.Port() {
					continue
				}
				if out := answer(p, name, client.String()); out != nil {
					_ = unix.Sendto(s.fd, out.marshal(), 0, sockaddr(client)) // a lost answer is sent again
				}
			}
		})
	}
}

// Association is an open association. Use it from one goroutine.
type Association struct {
	Name   string     // of the server
	Client netip.Addr // this client's address, as the server sees it

	socket   *rawSocket
	to       netip.AddrPort
	port     uint16
	tag, own uint32
}

// firstPort and dialled give each association of this process another source port: the kernel remembers for a while where an ended one went, and
// another one with the same ports would go there too.
var (
	firstPort = rand.Uint32()
	dialled   atomic.Uint32
)

func sourcePort() uint16 {
	const lowest, number = 20000, 40000
	return uint16(lowest + (firstPort%number+dialled.Add(1))%number)
}

// Dial opens an association from the thread's network namespace. The error wraps ErrRefused or ErrSilent.
func Dial(to netip.AddrPort) (*Association, error) {
	s, err := open(to.Addr().Is4())
	if err != nil {
		return nil, err
	}
	a := &Association{socket: s, to: to, port: sourcePort(), own: rand.Uint32()>>1 + 1}
	err = unix.Connect(s.fd, sockaddr(to.Addr()))
	if err == nil { // the network's errors come with the packet that caused them
		if s.four {
			err = unix.SetsockoptInt(s.fd, unix.SOL_IP, unix.IP_RECVERR, 1)
		} else {
			err = unix.SetsockoptInt(s.fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1)
		}
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("cannot connect to %s: %w", to, err)
	}
	reply, err := a.exchange(&packet{kind: initiate, body: greeting(a.own, "")}, initAck)
	if err == nil {
		var cookie string
		a.tag, cookie = readGreeting(reply.body)
		name, client, _ := strings.Cut(cookie, " ")
		a.Name = name
		if a.Client, err = netip.ParseAddr(client); err == nil {
			_, err = a.exchange(&packet{kind: cookieEcho, body: []byte(cookie)}, cookieAck)
		}
	}
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("cannot open an association with %s: %w", to, err)
	}
	return a, nil
}

// Send sends some bytes and waits until the server has acknowledged them. The error wraps ErrRefused or ErrSilent.
func (a *Association) Send() error {
	body := make([]byte, 12+4) // of TSN 0, stream 0
	_, err := a.exchange(&packet{kind: data, flags: 3, body: body}, sack)
	return err
}

// Close closes the socket without a word to the server.
func (a *Association) Close() { unix.Close(a.socket.fd) }

// exchange sends a packet until one of kind want arrives.
func (a *Association) exchange(p *packet, want kind) (*packet, error) {
	p.from, p.to, p.tag = a.port, a.to.Port(), a.tag
	for range patient {
		_ = unix.Send(a.socket.fd, p.marshal(), 0) // what a rule of this host rejects is an error here, and one of the network
		for {
			got, _, err := a.socket.receive()
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				if err := a.refused(); err != nil {
					return nil, err
				}
				continue
			}
			if got.from == a.to.Port() && got.to == a.port && got.tag == a.own && got.kind == want {
				return got, nil
			}
		}
		if err := a.refused(); err != nil {
			return nil, err
		}
	}
	return nil, ErrSilent
}

// refused reads the network's errors. Sockets with the same peer get those of each other's packets.
func (a *Association) refused() error {
	for {
		cause := make([]byte, 64)
		n, _, _, _, err := unix.Recvmsg(a.socket.fd, cause, make([]byte, 256), unix.MSG_ERRQUEUE)
		if err != nil {
			return nil
		}
		if n >= 4 && binary.BigEndian.Uint16(cause) == a.port && binary.BigEndian.Uint16(cause[2:]) == a.to.Port() {
			return ErrRefused
		}
	}
}
