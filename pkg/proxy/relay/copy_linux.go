package relay

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// bulkAfter is the number of consecutive reads of at least bulkFrom bytes after which a stream counts as bulk.
const (
	bulkAfter = 4
	bulkFrom  = bufferSize / 2
)

// read waits for data and reads it. The poller reports data only once, so it tries to read first.
func (r *receiver) read() error {
	if r.try == nil {
		r.try = r.attempt(func(fd int) (n int, err error) { return unix.Read(fd, r.buffer[:]) })
	}
	if err := r.raw.Read(r.try); err != nil {
		return err
	}
	return r.err
}

// readPacket is read for an unconnected socket.
func (r *receiver) readPacket() error {
	if r.try == nil {
		r.try = r.attempt(r.receiveFrom)
	}
	if err := r.raw.Read(r.try); err != nil {
		return err
	}
	return r.err
}

// attempt reads without waiting, and keeps a buffer only if there was something to read.
func (r *receiver) attempt(call func(fd int) (int, error)) func(fd uintptr) bool {
	return func(fd uintptr) bool {
		r.take()
		for {
			if r.n, r.err = call(int(fd)); r.err != syscall.EINTR {
				break
			}
		}
		if r.err == syscall.EAGAIN {
			r.done()
			return false
		}
		return true
	}
}

func (r *receiver) receiveFrom(fd int) (int, error) {
	n, from, err := unix.Recvfrom(fd, r.buffer[:], 0)
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		r.from = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		r.from = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return n, err
}
