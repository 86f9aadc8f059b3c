package relay

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

// TestPortsShared: each connection to an endpoint requests a source port that it shares with connections to other
// endpoints, before it has one.
func TestPortsShared(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := 0
	setSocketOption = func(fd windows.Handle, level, option, value int) error {
		if level == windows.SOL_SOCKET && option == soReuseUnicastPort && value == 1 {
			if _, err := windows.Getsockname(fd); err == nil {
				t.Error("the socket is bound already")
			}
			asked++
		}
		return windows.SetsockoptInt(fd, level, option, value)
	}
	defer func() { setSocketOption = windows.SetsockoptInt }()
	conn, err := dial(t.Context(), listener.Addr().(*net.TCPAddr).AddrPort(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if asked != 1 {
		t.Errorf("asked %d times for a shared port, want once", asked)
	}
}

// TestRefusalsReported: sessions get an error if nothing listens at their endpoint; the front's own socket gets no such
// error because of its clients.
func TestRefusalsReported(t *testing.T) {
	probe, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if errors.Is(err, windows.WSAEOPNOTSUPP) {
		t.Skipf("Wine refuses SIO_UDP_NETRESET, which Go asks for, and so each UDP socket: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dead := probe.LocalAddr().(*net.UDPAddr).AddrPort()
	probe.Close()
	var asked []uint32
	ioctl = func(fd windows.Handle, code uint32, in *byte, size uint32, out *byte, outSize uint32, returned *uint32, o *windows.Overlapped, routine uintptr) error {
		if code == windows.SIO_UDP_CONNRESET && size == 4 {
			asked = append(asked, uint32(*in))
		}
		return windows.WSAIoctl(fd, code, in, size, out, outSize, returned, o, routine)
	}
	defer func() { ioctl = windows.WSAIoctl }()
	shared := newShared(&Config{Clock: clock.RealClock{}})
	front := newFront(shared, Goroutines(shared), v1.ProtocolUDP)
	front.Chooser.Set(&proxy.Route{Protocol: v1.ProtocolUDP, Backends: []proxy.Endpoint{{Addr: dead}}})
	defer front.carrier.Close()
	socket, err := front.carrier.Listen(Place{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, Hears)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if one := socket.(*udpSocket).session(netip.MustParseAddrPort("127.0.0.1:9")); one == nil {
		t.Fatal("no session")
	}
	if len(asked) != 1 || asked[0] != 1 {
		t.Errorf("SIO_UDP_CONNRESET was switched to %v, want once to 1", asked)
	}
}

// TestTaken: listening on a port that another program uses at all addresses fails, with a way to find that program.
func TestTaken(t *testing.T) {
	other, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	shared := newShared(&Config{Clock: clock.RealClock{}})
	front := newFront(shared, Goroutines(shared), v1.ProtocolTCP)
	defer front.carrier.Close()
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), other.Addr().(*net.TCPAddr).AddrPort().Port())
	socket, err := front.carrier.Listen(Place{Addr: at}, Hears)
	if err == nil {
		socket.Close()
		t.Skip("this Windows lets a second program have the port at one address")
	}
	if !strings.Contains(err.Error(), "netsh http show servicestate") {
		t.Error(err)
	}
	if got := taken(windows.WSAECONNREFUSED); got != "" {
		t.Errorf("another error: %q", got)
	}
}
