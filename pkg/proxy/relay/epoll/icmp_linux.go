package epoll

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"
)

// maxRefusals is how many clients a loop informs per second: like the kernel, it does not answer every packet of a
// flood.
const maxRefusals = 1000

// refusals is a loop's state for reporting unreachable UDP endpoints.
type refusals struct {
	sockets [2]int    // raw sockets for ICMP and ICMPv6; 0: not open, -1: not available
	second  time.Time // to which count belongs
	count   int
}

// unreachable informs a client that no endpoint listens: it sends "port unreachable" from the front to which the client
// wrote, whose socket is given, as a server's host would (RFC 792, RFC 4443).
func (l *loop) unreachable(socket int, client netip.AddrPort) {
	r := &l.refusals
	if l.now.Sub(r.second) >= time.Second {
		r.second, r.count = l.now, 0
	}
	if r.count++; r.count > maxRefusals {
		return
	}
	front, err := unix.Getsockname(socket)
	if err != nil {
		return
	}
	family, message := 0, []byte(nil)
	var name unix.Sockaddr
	var source []byte
	switch f := front.(type) {
	case *unix.SockaddrInet4:
		message = portUnreachable(client, netip.AddrPortFrom(netip.AddrFrom4(f.Addr), uint16(f.Port)))
		name, source = &unix.SockaddrInet4{Addr: client.Addr().As4()}, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: f.Addr})
	case *unix.SockaddrInet6:
		family = 1
		message = portUnreachable(client, netip.AddrPortFrom(netip.AddrFrom16(f.Addr), uint16(f.Port)))
		name, source = &unix.SockaddrInet6{Addr: client.Addr().As16()}, unix.PktInfo6(&unix.Inet6Pktinfo{Addr: f.Addr})
	}
	if r.sockets[family] == 0 {
		r.sockets[family] = openICMP(family)
	}
	if r.sockets[family] < 0 {
		return
	}
	if err := unix.Sendmsg(r.sockets[family], message, source, name, unix.MSG_DONTWAIT); err != nil {
		klog.V(2).InfoS("Cannot send ICMP port unreachable to a client", "client", client, "err", err)
	}
}

// openICMP returns -1 if this process may not open raw sockets: then clients wait for their own timeouts.
func openICMP(family int) int {
	domain, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if family == 1 {
		domain, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		klog.InfoS("Cannot send ICMP port unreachable to UDP clients: cannot open a raw socket", "err", err)
		return -1
	}
	if nothing := (unix.ICMPv6Filter{}); family == 1 {
		for i := range nothing.Data {
			nothing.Data[i] = ^uint32(0)
		}
		err = errors.Join(unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &nothing),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)) // as for fronts: see bound
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_RAW, unix.ICMP_FILTER, -1)
	}
	err = errors.Join(err, transparent(fd, family == 0))
	if err != nil { // it may receive data that it does not read, or be unable to send from a front that is not local
		klog.V(2).InfoS("Cannot set up a raw socket", "err", err)
	}
	return fd
}

// portUnreachable returns the ICMP message about a UDP packet from a client to a front, with as much of its headers as
// the client's system needs to find the socket. The kernel sets the checksum of ICMPv6.
func portUnreachable(client, front netip.AddrPort) []byte {
	const unreachable4, unreachable6, port4, port6 = 3, 1, 3, 4
	udp := binary.BigEndian.AppendUint16(nil, client.Port())
	udp = binary.BigEndian.AppendUint16(udp, front.Port())
	udp = append(udp, 0, 8, 0, 0) // length, and no checksum
	if front.Addr().Is4() {
		ip := append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(client.Addr().AsSlice(), front.Addr().AsSlice()...)...)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		message := append([]byte{unreachable4, port4, 0, 0, 0, 0, 0, 0}, append(ip, udp...)...)
		binary.BigEndian.PutUint16(message[2:], checksum(message))
		return message
	}
	ip := append([]byte{0x60, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 64}, append(client.Addr().AsSlice(), front.Addr().AsSlice()...)...)
	return append([]byte{unreachable6, port6, 0, 0, 0, 0, 0, 0}, append(ip, udp...)...)
}

// checksum is the checksum of RFC 1071.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
