package relay

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

const (
	// bufferSize is enough for any UDP packet, and for a stream that system calls cost little.
	bufferSize = 64 << 10
	// bulkStretch is how much of a busy stream the kernel copies before we check again whether it is still busy.
	bulkStretch = 64 << 20
)

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// receiver reads a socket into buffers that it allocates only when there is data: an idle connection has none.
type receiver struct {
	conn    net.Conn
	packets *net.UDPConn // unconnected
	raw     syscall.RawConn
	try     func(fd uintptr) bool
	buffer  *[bufferSize]byte
	n       int
	err     error
	from    netip.AddrPort // sender of the packet that readPacket read
}

func newReceiver(conn interface {
	net.Conn
	syscall.Conn
}) (*receiver, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot read connection: %w", err)
	}
	packets, _ := conn.(*net.UDPConn)
	return &receiver{conn: conn, packets: packets, raw: raw}, nil
}

// next waits for data and returns it; the caller releases the buffer with done. For a stream, no bytes and no error
// mean its end.
func (r *receiver) next() ([]byte, error) { return r.got(r.read()) }

// nextPacket waits for a packet from any peer and returns it with its sender.
func (r *receiver) nextPacket() ([]byte, netip.AddrPort, error) {
	data, err := r.got(r.readPacket())
	return data, r.from, err
}

func (r *receiver) got(err error) ([]byte, error) {
	if err != nil {
		r.done()
		return nil, err
	}
	return r.buffer[:r.n], nil
}

func (r *receiver) take() {
	if r.buffer == nil {
		r.buffer = buffers.Get().(*[bufferSize]byte)
	}
}

func (r *receiver) done() {
	if r.buffer != nil {
		buffers.Put(r.buffer)
		r.buffer = nil
	}
}

// pump copies from one connection to the other until the first ends, which is not an error. Short exchanges use a
// buffer. Once a stream fills buffers, the kernel copies it if it can (splice on Linux, where bulkAfter is not 0),
// which costs a pipe. pump calls moved for each piece.
func pump(to, from *net.TCPConn, moved func()) error {
	r, err := newReceiver(from)
	if err != nil {
		return err
	}
	full := 0
	for {
		data, err := r.next()
		if err != nil {
			return err
		}
		moved()
		n := len(data)
		if n == 0 {
			r.done()
			return nil
		}
		_, err = to.Write(data)
		r.done()
		if err != nil {
			return err
		}
		if full++; n < bulkFrom {
			full = 0
		}
		if bulkAfter == 0 || full < bulkAfter {
			continue
		}
		full = 0
		if copied, err := to.ReadFrom(&io.LimitedReader{R: from, N: bulkStretch}); err != nil || copied < bulkStretch {
			return err
		}
	}
}
