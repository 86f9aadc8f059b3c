package relay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

func TestSuite(t *testing.T) {
	proxytest.Run(t, func(t *testing.T) (proxy.Backend, proxytest.Host) {
		h := newTestHost(t)
		return h.relay, h
	})
}

// TestGoroutines runs on the plane of every system what runs on this system's own.
func TestGoroutines(t *testing.T) {
	if _, same := newPlane().(goroutines); same {
		t.Skip("it is this system's own")
	}
	for name, test := range map[string]func(*testing.T){
		"affinity": TestAffinity, "churn": TestChurn, "udp": TestUDPSession, "udp ends": TestUDPSessionsEnd, "udp shared": TestSessionsShared,
	} {
		t.Run(name, test)
	}
	testTCP(t)
}

// testTCP runs what has to do with how fronts listen.
func testTCP(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"suite": TestSuite, "half-close": TestHalfClose, "reset": TestResetPassesThrough, "packets": TestPackets, "held": TestHeldUntilEndpointComes,
		"established": TestEstablishedSurvivesChanges, "node port": TestNodePort, "leak": TestNoLeak, "itself": TestEndpointIsFront, "resume": TestResume,
		"addresses": TestAddresses, "passes": TestPasses, "share": TestClientShare,
	} {
		t.Run(name, test)
	}
}

// unreachable is what a client meets at a UDP front whose endpoint is not there: told so where raw sockets can be had.
func (h *testHost) unreachable() string {
	if _, portable := h.relay.plane.(goroutines); portable || os.Getuid() != 0 {
		return "silence"
	}
	return "refused"
}

// dropped is what a client meets at a TCP front that drops: no answer where sockets can be silent.
func (h *testHost) dropped() string {
	if _, portable := h.relay.plane.(goroutines); portable {
		return "silence"
	}
	return "no answer"
}

// dialDropped begins a connection to a front that drops and returns when that has been left without an answer, or accepted. The function waits for the
// connection.
func (h *testHost) dialDropped(t *testing.T, front netip.AddrPort) func() *net.TCPConn {
	t.Helper()
	if h.dropped() == "silence" {
		conn := dialFront(t, front)
		return func() *net.TCPConn { return conn }
	}
	return dialUnanswered(t, front)
}

func planeOf(t *testing.T) plane {
	own := newPlane()
	if strings.HasPrefix(t.Name(), "TestGoroutines/") {
		return goroutines{}
	}
	if p, ok := own.(interface{ withoutLookup() plane }); ok && strings.HasPrefix(t.Name(), "TestBound/") {
		return p.withoutLookup()
	}
	return own
}

// leads says whether TCP fronts need no sockets, so that no other program's is in their way.
func (h *testHost) leads() bool {
	p, ok := h.relay.plane.(interface{ leads() bool })
	return ok && p.leads()
}

// testHost is this machine's loopback: every address of 127.0.0.0/8 is local, so services have addresses there without adding any.
type testHost struct {
	relay     *Relay
	addresses *proxytest.Addresses
	net       [2]byte // of 127.net.net.x, different in each test
	port      uint16
	endpoints map[v1.Protocol][]netip.AddrPort
	seen      map[socket]bool
	intruders []io.Closer
}

var (
	nextNet   byte
	nextNetMu sync.Mutex
)

// Inject implements proxytest.Injector: calls of Addresses fail, and others listen at one front in ten where they can.
func (h *testHost) Inject(on bool) {
	h.addresses.Inject(on)
	for _, one := range h.intruders {
		_ = one.Close()
	}
	h.intruders = nil
	for n := range 8 {
		front := h.Front(n)
		if !on || !proxytest.OneInTen() {
			continue
		}
		if l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(front)); err == nil {
			h.intruders = append(h.intruders, l)
		}
		if c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(front)); err == nil {
			h.intruders = append(h.intruders, c)
		}
	}
}

// newTestHost starts a Relay and four endpoints of each protocol that say who they are; the test's end closes all of it.
func newTestHost(t *testing.T) *testHost {
	t.Helper()
	nextNetMu.Lock()
	nextNet++
	h := &testHost{net: [2]byte{byte(os.Getpid()), nextNet}, port: 10000 + uint16(os.Getpid()>>8)%20000, endpoints: map[v1.Protocol][]netip.AddrPort{}, seen: map[socket]bool{}}
	nextNetMu.Unlock()
	h.addresses = proxytest.NewAddresses(h.addr(200), h.addr(201))
	h.relay = newRelay(Config{Addresses: h.addresses, UDPIdle: 5 * time.Second, Clock: clock.RealClock{}}, planeOf(t))
	t.Cleanup(h.relay.Close)
	for range 4 {
		h.endpoints[v1.ProtocolTCP] = append(h.endpoints[v1.ProtocolTCP], tcpServer(t, whoAndEcho))
		h.endpoints[v1.ProtocolUDP] = append(h.endpoints[v1.ProtocolUDP], udpServer(t))
	}
	for _, list := range h.endpoints {
		slices.SortFunc(list, netip.AddrPort.Compare)
	}
	return h
}

func (h *testHost) addr(last byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, h.net[0], h.net[1], last})
}

func (h *testHost) Front(n int) netip.AddrPort { return netip.AddrPortFrom(h.addr(byte(n+1)), h.port) }

func (h *testHost) Endpoint(n int, protocol v1.Protocol) netip.AddrPort {
	return h.endpoints[protocol][n]
}

func (h *testHost) Observe(t *testing.T, route proxy.Route) []netip.AddrPort {
	t.Helper()
	found := map[netip.AddrPort]bool{}
	for range 2 * max(1, len(route.Backends)) {
		who, err := ask(route.Protocol, route.Front)
		if err != nil {
			break
		}
		found[who] = true
	}
	var out []netip.AddrPort
	for who := range found {
		out = append(out, who)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func (h *testHost) Occupy(t *testing.T, protocol v1.Protocol, front netip.AddrPort) func() {
	t.Helper()
	if protocol == v1.ProtocolTCP && h.leads() {
		return nil
	}
	closer, err := listen(protocol, front)
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = closer.Close() }
}

func (h *testHost) Traces(t *testing.T) []string {
	t.Helper()
	var out []string
	for n := range 8 {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			closer, err := listen(protocol, h.Front(n))
			if err != nil {
				out = append(out, err.Error())
				continue
			}
			_ = closer.Close()
		}
	}
	if text := h.addresses.String(); text != "" {
		out = append(out, text)
	}
	if p, ok := h.relay.plane.(interface{ traces() []string }); ok {
		out = append(out, p.traces()...)
	}
	return out
}

func (h *testHost) Writes() int {
	for _, f := range h.relay.fronts {
		for _, s := range f.sockets {
			h.seen[s.socket] = true
		}
	}
	return len(h.seen) + h.addresses.Writes()
}

func listen(protocol v1.Protocol, addr netip.AddrPort) (io.Closer, error) {
	if protocol == v1.ProtocolUDP {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	}
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
}

// ask connects to a front and reads who answers.
func ask(protocol v1.Protocol, front netip.AddrPort) (netip.AddrPort, error) {
	conn, err := knock(protocol, front)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // ends with a reset: thousands of connections in TIME_WAIT would leave this host no port to listen at
	}
	return question(conn)
}

func knock(protocol v1.Protocol, front netip.AddrPort) (net.Conn, error) {
	if protocol == v1.ProtocolUDP {
		return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(front))
	}
	return net.DialTimeout("tcp", front.String(), 5*time.Second)
}

// question asks the endpoint behind conn for its address.
func question(conn net.Conn) (netip.AddrPort, error) {
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return netip.AddrPort{}, err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(line[:len(line)-1])
}

// tcpServer serves each connection with handle until the test ends.
func tcpServer(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	conns := map[*net.TCPConn]bool{}
	wait.Go(func() {
		for {
			conn, err := listener.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wait.Go(func() {
				handle(conn)
				_ = conn.Close()
				mu.Lock()
				delete(conns, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// whoAndEcho says who serves, then sends back what comes until its end.
func whoAndEcho(conn *net.TCPConn) {
	if _, err := fmt.Fprintf(conn, "%s\n", conn.LocalAddr()); err == nil {
		_, _ = io.Copy(conn, conn)
		_ = conn.CloseWrite()
	}
}

// udpServer answers each packet with who it is.
func udpServer(t testing.TB) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort([]byte(conn.LocalAddr().String()+"\n"), from)
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}
