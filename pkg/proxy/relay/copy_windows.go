package relay

import (
	"errors"
	"io"
)

// bulkAfter 0: the kernel has no way to copy from socket to socket.
const (
	bulkAfter = 0
	bulkFrom  = bufferSize
)

// read waits for data by a read of no bytes, and only then takes a buffer.
func (r *receiver) read() error {
	if err := r.wait(); err != nil {
		return err
	}
	var err error
	if r.n, err = r.conn.Read(r.buffer[:]); errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// readPacket is read for a socket of many peers.
func (r *receiver) readPacket() error {
	if err := r.wait(); err != nil {
		return err
	}
	var err error
	r.n, r.from, err = r.packets.ReadFromUDPAddrPort(r.buffer[:])
	return err
}

func (r *receiver) wait() error {
	ready := false
	if err := r.raw.Read(func(uintptr) bool { ready = !ready; return !ready }); err != nil {
		return err
	}
	r.take()
	return nil
}
