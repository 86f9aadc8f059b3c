package relay

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// SetKeepAlive makes the kernel probe a silent peer, as net does by default.
func SetKeepAlive(fd uintptr) error {
	for _, option := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9},
	} {
		if err := unix.SetsockoptInt(int(fd), option.level, option.name, option.value); err != nil {
			return fmt.Errorf("cannot set keep-alive: %w", err)
		}
	}
	return nil
}

// sharePort does nothing: Linux binds in connect, when it knows the endpoint.
func sharePort(uintptr) error { return nil }

// reportRefusals does nothing: a connected UDP socket reports refusals.
func reportRefusals(*net.UDPConn) error { return nil }

// giveUpAfter ends a connection whose data stays unacknowledged for so long.
func giveUpAfter(conn *net.TCPConn, d time.Duration) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(func(fd uintptr) error {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})("", "", raw)
}

// taken adds nothing: the error has everything that Linux reports.
func taken(error) string { return "" }

// refused reports whether the other host answered that nothing listens.
func refused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// noPortLeft reports that the system has no source port left towards an address.
func noPortLeft(err error) bool { return errors.Is(err, unix.EADDRNOTAVAIL) }

// NoFiles reports that this host, or this process, has no descriptor or memory for another socket.
func NoFiles(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}
