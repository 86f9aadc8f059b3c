// Package relaytest has what the tests of the relay's Planes share: one suite that each of them passes, and a host to
// run it on.
//
//	Subject (a Plane) --> Host: Relay on loopback addresses, endpoints that say who they are --> the suite of all back ends, and the relay's own
package relaytest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// Subject is a Plane under test with its particular behaviour.
type Subject struct {
	New relay.NewPlane
	// Refuses: UDP clients learn that an endpoint does not exist. Otherwise they get no response.
	Refuses bool
	// DialDropped starts a connection to a front that drops, and returns when that has not been answered. The returned
	// function waits for the connection. nil: such a front accepts connections and holds them.
	DialDropped func(t *testing.T, front netip.AddrPort) func() *net.TCPConn
	// Leads: TCP fronts need no sockets, so no other program's socket conflicts with them.
	Leads func() bool
	// Traces lists what a Plane has left on the host.
	Traces func(relay.Plane) []string
}

// Portable is the Plane of goroutines.
func Portable() Subject {
	return Subject{New: relay.Goroutines, Leads: func() bool { return false }, Traces: func(relay.Plane) []string { return nil }}
}

// unreachable is a client's result at a UDP front whose endpoint does not exist.
func (s *Subject) unreachable() string {
	if s.Refuses {
		return "refused"
	}
	return "silence"
}

// dropped is a client's result at a TCP front that drops.
func (s *Subject) dropped() string {
	if s.DialDropped != nil {
		return "no answer"
	}
	return "silence"
}

func (s *Subject) dialDropped(t *testing.T, front netip.AddrPort) func() *net.TCPConn {
	t.Helper()
	if s.DialDropped != nil {
		return s.DialDropped(t, front)
	}
	conn := DialFront(t, front)
	return func() *net.TCPConn { return conn }
}

// Host is this machine's loopback: every address of 127.0.0.0/8 is local, so Services have addresses there without
// adding any.
type Host struct {
	Relay     *relay.Relay
	Addresses *Addresses
	Endpoints map[v1.Protocol][]netip.AddrPort // four per protocol
	Port      uint16                           // of fronts

	subject   Subject
	plane     *counted
	registry  *prometheus.Registry
	net       [2]byte // of 127.net.net.x, different in each test
	intruders []io.Closer
}

var (
	nextNet   byte
	nextNetMu sync.Mutex
)

// NewHost starts a Relay on the Subject's Plane, and four endpoints per protocol that report their identity; all of it
// is closed when the test ends.
func NewHost(t *testing.T, subject Subject, change ...func(*relay.Config)) *Host {
	t.Helper()
	nextNetMu.Lock()
	nextNet++
	h := &Host{subject: subject, net: [2]byte{byte(os.Getpid()), nextNet}, Port: 10000 + uint16(os.Getpid()>>8)%20000, Endpoints: map[v1.Protocol][]netip.AddrPort{}}
	nextNetMu.Unlock()
	h.Addresses = NewAddresses(h.Addr(200), h.Addr(201))
	cfg := relay.Config{Addresses: h.Addresses, UDPIdle: 5 * time.Second, Clock: clock.RealClock{}}
	for _, c := range change {
		c(&cfg)
	}
	h.start(t, cfg)
	for range 4 {
		h.Endpoints[v1.ProtocolTCP] = append(h.Endpoints[v1.ProtocolTCP], TCPServer(t, WhoAndEcho))
		h.Endpoints[v1.ProtocolUDP] = append(h.Endpoints[v1.ProtocolUDP], UDPServer(t))
	}
	for _, list := range h.Endpoints {
		slices.SortFunc(list, netip.AddrPort.Compare)
	}
	return h
}

func (h *Host) start(t *testing.T, cfg relay.Config) {
	h.Relay = relay.New(func(s *relay.Shared) relay.Plane {
		h.plane = &counted{Plane: h.subject.New(s)}
		return h.plane
	}, cfg)
	t.Cleanup(h.Relay.Close)
	h.registry = prometheus.NewRegistry()
	h.registry.MustRegister(h.Relay.Collectors()...)
}

// Restart replaces the Relay with a new one on the same host.
func (h *Host) Restart(t *testing.T, change ...func(*relay.Config)) {
	t.Helper()
	h.Relay.Close()
	cfg := relay.Config{Addresses: h.Addresses, UDPIdle: 5 * time.Second, Clock: clock.RealClock{}}
	for _, c := range change {
		c(&cfg)
	}
	h.start(t, cfg)
}

// Plane returns the Relay's Plane, as Subject.New created it.
func (h *Host) Plane() relay.Plane { return h.plane.Plane }

// Metric returns the value of a metric, with the label "of" if that is not "".
func (h *Host) Metric(t testing.TB, name, of string) int {
	t.Helper()
	return MetricOf(t, h.registry, name, of)
}

// MetricOf returns the value of a metric of a registry, with the label "of" if that is not "".
func MetricOf(t testing.TB, registry *prometheus.Registry, name, of string) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (of == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == of) {
				return int(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			}
		}
	}
	t.Fatalf("there is no metric %s %s", name, of)
	return 0
}

// Use is a limit with its use, from the metrics.
type Use struct{ Used, Limit int }

// Use returns a limit with its use, from the metrics.
func (h *Host) Use(t testing.TB, of string) Use {
	t.Helper()
	return Use{h.Metric(t, "kubeproxy_relay_limit_used", of), h.Metric(t, "kubeproxy_relay_limit", of)}
}

// Open returns the number of open connections and sessions.
func (h *Host) Open(t testing.TB) int { return h.Metric(t, "kubeproxy_relay_open", "") }

// counted counts the sockets that a Plane opens.
type counted struct {
	relay.Plane
	sockets []relay.Socket // including closed ones
}

func (c *counted) Carry(f *relay.Front) relay.Carrier { return countedCarrier{c.Plane.Carry(f), c} }

type countedCarrier struct {
	relay.Carrier
	plane *counted
}

func (c countedCarrier) Listen(at relay.Place, silent relay.Silence) (relay.Socket, error) {
	s, err := c.Carrier.Listen(at, silent)
	if err == nil {
		c.plane.sockets = append(c.plane.sockets, s)
	}
	return s, err
}

// Sockets returns all sockets that the Plane has opened so far.
func (h *Host) Sockets() []relay.Socket { return h.plane.sockets }

// Addr returns an address of the host's network: 200 and 201 are the host's, the others are free.
func (h *Host) Addr(last byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, h.net[0], h.net[1], last})
}

// Front implements proxytest.Host.
func (h *Host) Front(n int) netip.AddrPort { return netip.AddrPortFrom(h.Addr(byte(n+1)), h.Port) }

// Endpoint implements proxytest.Host.
func (h *Host) Endpoint(n int, protocol v1.Protocol) netip.AddrPort {
	return h.Endpoints[protocol][n]
}

// Inject implements proxytest.Injector: calls of Addresses fail, and other sockets listen at one front in ten if they
// can.
func (h *Host) Inject(on bool) {
	h.Addresses.Inject(on)
	for _, one := range h.intruders {
		_ = one.Close()
	}
	h.intruders = nil
	for n := range 8 {
		front := h.Front(n)
		if !on || !proxytest.OneInTen() {
			continue
		}
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			if c, err := Listen(protocol, front); err == nil {
				h.intruders = append(h.intruders, c)
			}
		}
	}
}

// Observe implements proxytest.Host.
func (h *Host) Observe(t *testing.T, route proxy.Route) []netip.AddrPort {
	t.Helper()
	found := map[netip.AddrPort]bool{}
	for range 2 * max(1, len(route.Backends)) {
		who, err := Ask(route.Protocol, route.Front)
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

// Occupy implements proxytest.Host.
func (h *Host) Occupy(t *testing.T, protocol v1.Protocol, front netip.AddrPort) func() {
	t.Helper()
	if protocol == v1.ProtocolTCP && h.subject.Leads() {
		return nil
	}
	closer, err := Listen(protocol, front)
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = closer.Close() }
}

// Traces implements proxytest.Host.
func (h *Host) Traces(t *testing.T) []string {
	t.Helper()
	var out []string
	for n := range 8 {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			closer, err := Listen(protocol, h.Front(n))
			if err != nil {
				out = append(out, err.Error())
				continue
			}
			_ = closer.Close()
		}
	}
	if text := h.Addresses.String(); text != "" {
		out = append(out, text)
	}
	return append(out, h.subject.Traces(h.plane.Plane)...)
}

// Writes implements proxytest.Host.
func (h *Host) Writes() int { return len(h.plane.sockets) + h.Addresses.Writes() }

// Listen listens as another program would.
func Listen(protocol v1.Protocol, addr netip.AddrPort) (io.Closer, error) {
	if protocol == v1.ProtocolUDP {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	}
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
}

// Ask connects to a front and returns the endpoint that answers.
func Ask(protocol v1.Protocol, front netip.AddrPort) (netip.AddrPort, error) {
	conn, err := Knock(protocol, front)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // ends with a reset: thousands of connections in TIME_WAIT would leave this host no port to listen on
	}
	return Question(conn)
}

// Knock connects to a front.
func Knock(protocol v1.Protocol, front netip.AddrPort) (net.Conn, error) {
	if protocol == v1.ProtocolUDP {
		return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(front))
	}
	return net.DialTimeout("tcp", front.String(), time.Minute)
}

// Question asks the endpoint behind conn for its address.
func Question(conn net.Conn) (netip.AddrPort, error) {
	patience := time.Minute
	if conn.RemoteAddr().Network() == "udp" { // a packet may meet the end of its session, and then no answer comes
		patience = 5 * time.Second
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return netip.AddrPort{}, err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(line[:len(line)-1])
}

// IsReset recognizes the error codes of both systems. Neither code occurs on the other system.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.Errno(10054))
}

// IsRefused recognizes the error codes of both systems. Neither code occurs on the other system. For a UDP socket, Windows
// reports a reset.
func IsRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.Errno(10061)) || errors.Is(err, syscall.Errno(10054))
}

// TCPServer serves each connection with handle until the test ends.
func TCPServer(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
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

// WhoAndEcho sends the server's identity, then echoes until the client ends.
func WhoAndEcho(conn *net.TCPConn) {
	if _, err := fmt.Fprintf(conn, "%s\n", conn.LocalAddr()); err == nil {
		_, _ = io.Copy(conn, conn)
		_ = conn.CloseWrite()
	}
}

// UDPServer answers each packet with its identity.
func UDPServer(t testing.TB) netip.AddrPort {
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
