package epoll

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The data plane's system calls do not block, or only for a given time. So they do not announce themselves to Go's
// scheduler, which would cost as much as the shorter calls.

// epollWait waits at most that many milliseconds.
func epollWait(epoll int, events []unix.EpollEvent, milliseconds int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), uintptr(milliseconds), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// receive reads from a socket; no bytes and no error: the peer has closed it.
func receive(fd int, p []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		if errno == 0 {
			return int(n), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// send writes to a socket; to a stream possibly only a part.
func send(fd int, p []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			return int(n), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// splice moves up to n bytes between a socket and a pipe.
func splice(from, to, n int) (int, unix.Errno) {
	for {
		moved, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errno == 0 {
			return int(moved), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// resetAtClose makes close send a reset to the peer.
func resetAtClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func closeSocket(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// acceptSocket accepts a connection from a listener's queue.
func acceptSocket(listener int) (fd int, from netip.AddrPort, errno unix.Errno) {
	var name unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)),
			unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno == 0 {
			return int(n), addrOf(&name), 0
		}
		if errno != unix.EINTR {
			return -1, netip.AddrPort{}, errno
		}
	}
}

// localName returns the local address of a connection; the zero AddrPort: unknown.
func localName(fd int) netip.AddrPort {
	var name unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	if _, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return addrOf(&name)
}

// connectSocket opens a socket of a kind to an address, with the source address from unless that is the zero Addr. A
// stream may still be connecting when it returns.
func connectSocket(kind int, to netip.AddrPort, from netip.Addr) (int, unix.Errno) {
	family := uintptr(unix.AF_INET6)
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	n, _, errno := unix.RawSyscall(unix.SYS_SOCKET, family, uintptr(kind)|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, errno
	}
	fd := int(n)
	if kind == unix.SOCK_STREAM {
		if errno := setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); errno != 0 {
			closeSocket(fd)
			return -1, errno
		}
	}
	if from.IsValid() {
		if errno := pretend(fd, from); errno != 0 {
			closeSocket(fd)
			return -1, errno
		}
	}
	name, size := nameOf(to)
	_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(size))
	if errno != 0 && errno != unix.EINPROGRESS && errno != unix.EINTR {
		closeSocket(fd)
		return -1, errno
	}
	return fd, 0
}

func bindName(fd int, name *unix.RawSockaddrInet6, size uint32) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(name)), uintptr(size))
	return errno
}

func setOption(fd, level, name int, value int32) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
	return errno
}

// nameOf converts an address to the kernel's form. That of IPv4 is a prefix of the same memory.
func nameOf(addr netip.AddrPort) (name unix.RawSockaddrInet6, size uint32) {
	port := addr.Port()<<8 | addr.Port()>>8 // network byte order
	if addr.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&name)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port, Addr: addr.Addr().As4()}
		return name, unix.SizeofSockaddrInet4
	}
	return unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: addr.Addr().As16()}, unix.SizeofSockaddrInet6
}

// addrOf converts an address from the kernel's form.
func addrOf(name *unix.RawSockaddrAny) netip.AddrPort {
	swap := func(port uint16) uint16 { return port<<8 | port>>8 }
	switch name.Addr.Family {
	case unix.AF_INET:
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), swap(four.Port))
	case unix.AF_INET6:
		six := (*unix.RawSockaddrInet6)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom16(six.Addr), swap(six.Port))
	}
	return netip.AddrPort{}
}
