package connect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wayEnv names what a child of TestProcesses does.
const wayEnv = "WINKUBE_CONNECT_WAY"

// TestProcesses: a socket keeps the cgroup in which it was opened, whichever process uses it. So a container in a cgroup
// below, with its own view of cgroups, is served, as is a forked child that connects its parent's socket. In another
// cgroup a process is served if it uses a socket that it received, but not if it opens one.
func TestProcesses(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:8080"), route("b 10.96.0.1:80 10.1.0.2:8080", udp))
	const served, alone = "10.1.0.2:8080 10.1.0.1", "network is unreachable"

	below := filepath.Join(h.cgroup, "container")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(below); err != nil {
			t.Error(err)
		}
	})
	root, err := RootCgroup()
	if err != nil {
		t.Fatal(err)
	}
	own := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP}
	expect(t, "a container", h.childAsks(t, "dial", below, own), served+", "+served)
	expect(t, "a forked child", h.childAsks(t, "inherit", h.cgroup, nil, socket(t, unix.SOCK_STREAM), socket(t, unix.SOCK_DGRAM)), served+", "+served)
	expect(t, "another cgroup", h.childAsks(t, "dial", root, nil), alone+", "+alone)

	mine, theirs := socketPair(t)
	if err := unix.Sendmsg(int(mine.Fd()), []byte("!"), unix.UnixRights(int(socket(t, unix.SOCK_STREAM).Fd()), int(socket(t, unix.SOCK_DGRAM).Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	expect(t, "another cgroup with received sockets", h.childAsks(t, "receive", root, nil, theirs), served+", "+served)
}

// childAsks runs TestChildAsks in a process of a cgroup, which has files from descriptor 3 on, and returns its answers
// over TCP and UDP.
func (h *host) childAsks(t *testing.T, way, cgroup string, attributes *syscall.SysProcAttr, files ...*os.File) string {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if attributes == nil {
		attributes = &syscall.SysProcAttr{}
	}
	attributes.UseCgroupFD, attributes.CgroupFD = true, int(dir.Fd())
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	process, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "-test.run=^TestChildAsks$", "-test.v"},
		&os.ProcAttr{Env: append(os.Environ(), wayEnv+"="+way), Files: append([]*os.File{nil, write, os.Stderr}, files...), Sys: attributes})
	write.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(read)
	state, waited := process.Wait()
	_, answer, found := strings.Cut(string(out), "answers: ")
	if err = errors.Join(err, waited); err != nil || !found {
		t.Fatalf("%s: %v: %v: %s", way, err, state, out)
	}
	answer, _, _ = strings.Cut(answer, "\n")
	return answer
}

// TestChildAsks is what a child of TestProcesses does.
func TestChildAsks(t *testing.T) {
	const front = "10.96.0.1:80"
	var tcp, udp string
	switch os.Getenv(wayEnv) {
	case "":
		t.Skip("runs as a child of TestProcesses")
	case "dial":
		tcp, udp = ask("tcp", front, nil), ask("udp", front, nil)
	case "inherit":
		tcp, udp = askBy(3), askBy(4)
	case "receive":
		rights := make([]byte, unix.CmsgSpace(8))
		_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), rights, 0)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			t.Fatal(messages, err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 2 {
			t.Fatal(fds, err)
		}
		tcp, udp = askBy(fds[0]), askBy(fds[1])
	}
	fmt.Printf("\nanswers: %s, %s\n", tcp, udp)
}

// askBy connects a socket to the front and returns the answer.
func askBy(fd int) string {
	if err := unix.Connect(fd, frontOfTest()); err != nil {
		return reason(err)
	}
	_ = unix.SetNonblock(fd, true)
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	return question(c)
}

func frontOfTest() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 0, 1}}
}

func socket(t *testing.T, kind int) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { file.Close() })
	return file
}

func socketPair(t *testing.T) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair")
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestQUICClient: clients of QUIC send several packets by one call (UDP_SEGMENT in udp(7)) from an unconnected socket,
// and ask for the address to which an answer came (IP_PKTINFO in ip(7)).
func TestQUICClient(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:443")
	h.to(t, route("a 10.96.0.1:443 10.1.0.2:443", udp))
	p, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	raw, err := p.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	front := netip.MustParseAddrPort("10.96.0.1:443")
	segment := make([]byte, unix.CmsgSpace(2))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&segment[0]))
	header.Level, header.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	header.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(segment[unix.CmsgLen(0):], 4)
	if _, _, err := p.WriteMsgUDPAddrPort([]byte("one.two.last"), segment, front); err != nil {
		t.Fatal(err)
	}
	_ = p.SetDeadline(time.Now().Add(patience))
	for range 3 {
		buffer, control := make([]byte, 64), make([]byte, 128)
		n, m, _, from, err := p.ReadMsgUDPAddrPort(buffer, control)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "answer", string(buffer[:n]), "10.1.0.2:443 10.1.0.1")
		expect(t, "the answer's source", from.String(), front.String())
		messages, err := unix.ParseSocketControlMessage(control[:m])
		if err != nil || len(messages) != 1 || messages[0].Header.Type != unix.IP_PKTINFO {
			t.Fatalf("%v, %v", messages, err)
		}
		info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&messages[0].Data[0]))
		expect(t, "the address of this host", netip.AddrFrom4(info.Addr).String(), "10.1.0.1")
	}
}

// TestIOUring: a client connects and sends by io_uring(7), which makes no system call for either.
func TestIOUring(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:8080")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:8080"), route("b 10.96.0.1:80 10.1.0.2:8080", udp), route("c 10.96.0.2:80"))
	r := newRing(t)
	at := func(last byte) []byte { // sockaddr_in
		return append(binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), 80), 10, 96, 0, last, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	const connect, send = 16, 26 // IORING_OP_CONNECT and IORING_OP_SEND
	tcp := int(socket(t, unix.SOCK_STREAM).Fd())
	expect(t, "connect", r.do(connect, tcp, at(1), 16, 0).Error(), "errno 0")
	buffer := make([]byte, 64)
	n, err := unix.Read(tcp, buffer)
	expect(t, fmt.Sprint("answer, ", err), string(buffer[:max(n, 0)]), "10.1.0.2:8080 10.1.0.1")
	expect(t, "no endpoint", r.do(connect, int(socket(t, unix.SOCK_STREAM).Fd()), at(2), 16, 0).Error(), unix.ECONNREFUSED.Error())

	udp := int(socket(t, unix.SOCK_DGRAM).Fd())
	expect(t, "connect, UDP", r.do(connect, udp, at(1), 16, 0).Error(), "errno 0")
	expect(t, "send", r.do(send, udp, []byte("?"), 0, 1).Error(), "errno 0")
	n, err = unix.Read(udp, buffer)
	expect(t, fmt.Sprint("answer over UDP, ", err), string(buffer[:max(n, 0)]), "10.1.0.2:8080 10.1.0.1")
}

// ring is an io_uring for one request at a time.
type ring struct {
	fd                  int
	rings, entries      []byte // submission and completion rings; submission entries
	argument            []byte
	sqTail, sqArray     uint32 // offsets into rings
	cqHead, cqes, cqAnd uint32
}

// newRing skips the test if the kernel has no io_uring or forbids it.
func newRing(t *testing.T) *ring {
	t.Helper()
	var params struct { // struct io_uring_params
		sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
		_                                                    [3]uint32
		sq                                                   [10]uint32 // head, tail, mask, entries, flags, dropped, array, reserved, address
		cq                                                   [10]uint32 // head, tail, mask, entries, overflow, entries' start, flags, reserved, address
	}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		t.Skipf("no io_uring here: %v", errno)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	if params.features&1 == 0 { // IORING_FEAT_SINGLE_MMAP, Linux 5.4
		t.Skip("this kernel's io_uring has two mappings")
	}
	mapped := func(offset int64, size, flags int) []byte {
		data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if flags == unix.MAP_SHARED {
			data, err = unix.Mmap(int(fd), offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(data) })
		return data
	}
	size := max(params.sq[6]+params.sqEntries*4, params.cq[5]+params.cqEntries*16)
	r := &ring{fd: int(fd), sqTail: params.sq[1], sqArray: params.sq[6], cqHead: params.cq[0], cqes: params.cq[5]}
	r.rings, r.entries = mapped(0, int(size), unix.MAP_SHARED), mapped(0x10000000, int(params.sqEntries)*64, unix.MAP_SHARED)
	r.argument = mapped(0, 4096, unix.MAP_PRIVATE)
	r.cqAnd = binary.NativeEndian.Uint32(r.rings[params.cq[2]:])
	return r
}

func (r *ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }

// do waits for one request. second is the entry's other address, for which connect has the length of the first.
func (r *ring) do(operation byte, fd int, argument []byte, second uint64, length uint32) syscall.Errno {
	copy(r.argument, argument)
	entry := r.entries[:64]
	clear(entry)
	entry[0] = operation
	binary.NativeEndian.PutUint32(entry[4:], uint32(fd))
	binary.NativeEndian.PutUint64(entry[8:], second)
	binary.NativeEndian.PutUint64(entry[16:], uint64(uintptr(unsafe.Pointer(&r.argument[0]))))
	binary.NativeEndian.PutUint32(entry[24:], length)
	*r.word(r.sqArray) = 0
	atomic.AddUint32(r.word(r.sqTail), 1)
	const wait = 1 // IORING_ENTER_GETEVENTS
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 1, wait, 0, 0); errno != 0 {
		return errno
	}
	head := atomic.LoadUint32(r.word(r.cqHead))
	result := int32(binary.NativeEndian.Uint32(r.rings[r.cqes+head&r.cqAnd*16+8:]))
	atomic.StoreUint32(r.word(r.cqHead), head+1)
	return syscall.Errno(max(-result, 0))
}
