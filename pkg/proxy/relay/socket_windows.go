package relay

import (
	"errors"
	"fmt"
	"net"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// soReuseUnicastPort is SO_REUSE_UNICASTPORT of ws2def.h.
const soReuseUnicastPort = 0x3007

// sharePort lets TCP sockets to different endpoints share a source port. Go binds each socket to a port of 0.0.0.0
// before ConnectEx (net/fd_windows.go, connect), which otherwise occupies the port for all endpoints, also in
// TIME_WAIT. Server 2016 is the first with this option (Microsoft, "SOL_SOCKET Socket Options"). Connections work
// without it too.
func sharePort(fd uintptr) error {
	if err := setSocketOption(windows.Handle(fd), windows.SOL_SOCKET, soReuseUnicastPort, 1); err != nil {
		return fmt.Errorf("cannot share source ports between endpoints: %w", err)
	}
	return nil
}

// reportRefusals makes a read of a UDP socket fail if the endpoint's host has answered that nothing listens. Go
// disables that for every UDP socket (net/fd_windows.go, init), because a listener must not fail because of a single
// client.
func reportRefusals(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(func(fd uintptr) error {
		on, returned := uint32(1), uint32(0)
		if err := ioctl(windows.Handle(fd), windows.SIO_UDP_CONNRESET, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &returned, nil, 0); err != nil {
			return fmt.Errorf("cannot enable reports of refused packets: %w", err)
		}
		return nil
	})("", "", raw)
}

// Windows functions that a test replaces, because Wine accepts these calls without effect.
var (
	setSocketOption = windows.SetsockoptInt
	ioctl           = windows.WSAIoctl
)

// tcpMaxRT is TCP_MAXRT of ws2ipdef.h: seconds after which unacknowledged data ends the connection.
const tcpMaxRT = 5

// SetKeepAlive makes the system probe a silent peer; accepted sockets inherit it.
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

// taken says how to find the program that uses a port: http.sys occupies its ports at all addresses, and Windows does
// not name the program (Microsoft, "IP Listen List").
func taken(err error) string {
	if !errors.Is(err, windows.WSAEADDRINUSE) && !errors.Is(err, windows.WSAEACCES) {
		return ""
	}
	return "; another program has the port, maybe at all addresses: netstat -ano shows its process; for process 4 (http.sys), netsh http show servicestate shows more, " +
		"and netsh http add iplisten ipaddress=ADDRESS limits http.sys to the node's address"
}

// refused reports whether the other host answered that nothing listens; for a UDP socket, Windows reports a reset.
func refused(err error) bool {
	return errors.Is(err, windows.WSAECONNREFUSED) || errors.Is(err, windows.WSAECONNRESET)
}

// noPortLeft reports that the system has no source port left towards an address.
func noPortLeft(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAENOBUFS)
}

// NoFiles reports that this host has no socket or memory left.
func NoFiles(err error) bool {
	return errors.Is(err, windows.WSAEMFILE) || errors.Is(err, windows.ERROR_NOT_ENOUGH_MEMORY)
}
