package relay

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/windows"
)

// tcpMaxRT is TCP_MAXRT of ws2ipdef.h: seconds after which unacknowledged data ends the connection.
const tcpMaxRT = 5

// SetKeepAlive has the system ask a silent peer whether it is still there; accepted sockets inherit it.
func SetKeepAlive(fd uintptr) error {
	if err := windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_KEEPALIVE, 1); err != nil {
		return fmt.Errorf("cannot set keep-alive: %w", err)
	}
	return nil
}

// giveUpAfter ends a connection whose data stays unacknowledged for so long.
func giveUpAfter(conn *net.TCPConn, d time.Duration) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(func(fd uintptr) error {
		return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_TCP, tcpMaxRT, int(d.Seconds()))
	})("", "", raw)
}

// refused says whether the other host answered that nothing listens; of a UDP socket Windows says that it was reset.
func refused(err error) bool {
	return errors.Is(err, windows.WSAECONNREFUSED) || errors.Is(err, windows.WSAECONNRESET)
}

// noPortLeft says that the system has no source port left towards an address.
func noPortLeft(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAENOBUFS)
}

// NoFiles says that this host has no socket or memory left.
func NoFiles(err error) bool {
	return errors.Is(err, windows.WSAEMFILE) || errors.Is(err, windows.ERROR_NOT_ENOUGH_MEMORY)
}
