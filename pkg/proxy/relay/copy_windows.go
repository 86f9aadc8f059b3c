package relay

import (
	"errors"
	"io"
)

// bulkAfter 0: the kernel cannot copy from socket to socket.
const (
	bulkAfter = 0
	bulkFrom  = bufferSize
)

// read waits for data with a read of zero bytes, and only then allocates a buffer.
func (r *receiver) read() error {
	if err := r.wait(); err != nil {
		return err
	}
	if r.n, r.err = r.conn.Read(r.buffer[:]); errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}

// readPacket is read for an unconnected socket.
func (r *receiver) readPacket() error {
	if err := r.wait(); err != nil {
		return err
	}
	r.n, r.from, r.err = r.packets.ReadFromUDPAddrPort(r.buffer[:])
	return r.err
}

func (r *receiver) wait() error {
	if r.try == nil {
		ready := false
		r.try = func(uintptr) bool { ready = !ready; return !ready } // called before and after the wait
	}
	if err := r.raw.Read(r.try); err != nil {
		return err
	}
	r.take()
	return nil
}
