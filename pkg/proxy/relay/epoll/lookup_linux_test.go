package epoll

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
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// program listens on all addresses of a family at a port, as a server with hostNetwork does, and answers "program".
func program(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("program"))
			_ = c.Close()
		}
	}()
	return l
}

// echoes reports whether the data that is sent through a connection comes back.
func echoes(conn net.Conn) error {
	if _, err := fmt.Fprintln(conn, "still"); err != nil {
		return err
	}
	for lines := bufio.NewReader(conn); ; {
		if line, err := lines.ReadString('\n'); err != nil || line == "still\n" {
			return err
		}
	}
}

// inTimeWait reports whether this network namespace has a connection of the port in TIME_WAIT.
func inTimeWait(t *testing.T, network string, port uint16) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/" + network)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == "06" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// TestBesidePrograms: programs that listen on all addresses at the services' port and those services are both served,
// in any order of start, while connections through the services are open and after they have ended.
func TestBesidePrograms(t *testing.T) {
	needsLookup(t)
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	brief := relaytest.TCPServer(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("bye")) })
	a := ranged(t, "10.96.0.0/12", "fd00:96::/112")
	table := []proxy.Route{
		relaytest.Route("four", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint),
		relaytest.Route("six", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::1]:80"), endpoint),
		relaytest.Route("external", proxy.ExternalIP, v1.ProtocolTCP, netip.MustParseAddrPort("198.51.100.1:80"), endpoint),
		relaytest.Route("none", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.2:80")),
		relaytest.Route("brief4", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.3:80"), brief),
		relaytest.Route("brief6", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("[fd00:96::3]:80"), brief),
	}
	h := relaytest.NewHost(t, newSubject(), func(c *relay.Config) { c.Addresses = a })
	check := func(when string) {
		t.Helper()
		for _, r := range table[:4] {
			who, err := relaytest.Ask(r.Protocol, r.Front)
			if served := err == nil && who == endpoint; served != (len(r.Backends) > 0) || !served && !relaytest.IsRefused(err) {
				t.Errorf("%s: %s answers %v, %v", when, r.Front, who, err)
			}
		}
	}
	programs := func(when string) (end func()) {
		t.Helper()
		four, six := program(t, "tcp4", "0.0.0.0:80"), program(t, "tcp6", "[::]:80")
		for _, addr := range []string{"192.0.2.1:80", "127.0.0.1:80", "[fd01::1]:80"} {
			if got := nstest.Answers(t, "tcp", netip.MustParseAddrPort(addr)); got != "program" {
				t.Errorf("%s: the program at %s: %s", when, addr, got)
			}
		}
		check(when)
		return func() { _, _ = four.Close(), six.Close() }
	}
	four, six := program(t, "tcp4", "0.0.0.0:80"), program(t, "tcp6", "[::]:80")
	h.MustSync(t, slices.Clone(table)...) // it sorts them
	check("the programs first")
	_, _ = four.Close(), six.Close()
	check("the programs gone")
	programs("the services first")()

	for _, r := range table[4:] { // their endpoint ends first, so that the relay's end goes to TIME_WAIT
		c := relaytest.DialFront(t, r.Front)
		if _, err := io.ReadAll(c); err != nil || c.Close() != nil {
			t.Fatal(err)
		}
	}
	relaytest.Eventually(t, "connections in TIME_WAIT", func() bool { return inTimeWait(t, "tcp", 80) && inTimeWait(t, "tcp6", 80) })
	var open []*net.TCPConn
	for _, r := range table[:3] {
		c := relaytest.DialFront(t, r.Front)
		open = append(open, c)
		if _, err := relaytest.Question(c); err != nil {
			t.Fatal(err)
		}
	}
	end := programs("with connections open and ended")
	for i, c := range open {
		if err := echoes(c); err != nil {
			t.Errorf("%s: an open connection: %v", table[i].Front, err)
		}
	}
	if got := ledFronts(t, h); got != 5 {
		t.Errorf("%v fronts are led, want 5", got)
	}
	end()
	h.MustSync(t)
	if got := ledFronts(t, h); got != 0 {
		t.Errorf("%v fronts are led, want none", got)
	}
}

// TestHostsOwnPorts: at the host's own address, a program that listens keeps its port, and the Service gets an error
// that says so. If the address is added or removed later, this applies from then on.
func TestHostsOwnPorts(t *testing.T) {
	needsLookup(t)
	h := relaytest.NewHost(t, newSubject())
	front := netip.AddrPortFrom(h.Addr(200), h.Port) // of the host
	other, err := relaytest.Listen(v1.ProtocolTCP, front)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r := relaytest.Route("x", proxy.ExternalIP, v1.ProtocolTCP, front, h.Endpoint(0, v1.ProtocolTCP))
	if err := h.Sync(t, r); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a program's own port: %v", err)
	}
	set := func(addrs ...netip.Addr) {
		go h.Addresses.SetHost(addrs...)
		hints, _ := h.Addresses.Changes(t.Context())
		<-hints
	}
	set(h.Addr(201))
	h.MustSync(t, r)
	if who, err := relaytest.Ask(v1.ProtocolTCP, front); err != nil || who != r.Backends[0].Addr {
		t.Errorf("the address is not the host's any more: %s, %v", who, err)
	}
	set(h.Addr(200), h.Addr(201))
	if err := h.Sync(t, r); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("the address is the host's again: %v", err)
	}
}

// TestTwoRelays: of two proxies, as during an upgrade, the later one serves, and the earlier one after that has ended;
// no connection is lost meanwhile.
func TestTwoRelays(t *testing.T) {
	needsLookup(t)
	first, second := relaytest.NewHost(t, newSubject()), relaytest.NewHost(t, newSubject())
	front := first.Front(0)
	r := func(h *relaytest.Host) proxy.Route {
		return relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, front, h.Endpoint(0, v1.ProtocolTCP))
	}
	serves := func(when string, h *relaytest.Host) {
		t.Helper()
		if who, err := relaytest.Ask(v1.ProtocolTCP, front); err != nil || who != h.Endpoint(0, v1.ProtocolTCP) {
			t.Errorf("%s: %s answers, %v", when, who, err)
		}
	}
	first.MustSync(t, r(first))
	conn := relaytest.DialFront(t, front)
	if _, err := relaytest.Question(conn); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var enough atomic.Bool
	var client sync.WaitGroup
	client.Go(func() {
		for !enough.Load() {
			if _, err := relaytest.Ask(v1.ProtocolTCP, front); err != nil {
				t.Errorf("a client: %v", err)
				return
			}
			asked.Add(1)
		}
	})
	second.MustSync(t, r(second))
	serves("both", second)
	before := asked.Load()
	relaytest.Eventually(t, "the client goes on", func() bool { return asked.Load() > before+1 || t.Failed() })
	enough.Store(true)
	client.Wait()
	second.MustSync(t)
	serves("the second gone", first)
	second.MustSync(t, r(second))
	serves("the second again", second)
	if err := echoes(conn); err != nil {
		t.Errorf("a connection of the first: %v", err)
	}
	first.Relay.Close()
	serves("the first gone", second)
}

// TestLookupTakenAway: a detached program is attached again with the next full comparison.
func TestLookupTakenAway(t *testing.T) {
	needsLookup(t)
	h := relaytest.NewHost(t, newSubject())
	r := relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP))
	h.MustSync(t, r)
	if err := planeOf(h).lookup.link.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := relaytest.Ask(v1.ProtocolTCP, r.Front); !relaytest.IsRefused(err) {
		t.Fatalf("taken away: %v", err)
	}
	h.MustSync(t, r)
	if who, err := relaytest.Ask(v1.ProtocolTCP, r.Front); err != nil || who != r.Backends[0].Addr {
		t.Errorf("after the next comparison: %s, %v", who, err)
	}
}

// TestListeningEnded: sockets that no longer listen (as after ss -K) listen again, both those of fronts and those of
// the lookup.
func TestListeningEnded(t *testing.T) {
	h := relaytest.NewHost(t, newSubject())
	routes := []proxy.Route{
		relaytest.Route("port", proxy.NodePort, v1.ProtocolTCP, netip.AddrPortFrom(h.Addr(200), h.Port), h.Endpoint(0, v1.ProtocolTCP)),
		relaytest.Route("address", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP)),
	}
	h.MustSync(t, routes...)
	var ended []int
	for _, one := range h.Sockets() {
		if s, ok := one.(*listener); ok {
			ended = append(ended, s.fd)
		}
	}
	if l := planeOf(h).lookup; l != nil {
		for _, s := range l.listeners[listenerKind{is4: true}] {
			ended = append(ended, s.fd)
		}
	}
	if len(ended) < 2 {
		t.Fatalf("%d sockets listen", len(ended))
	}
	for _, fd := range ended {
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range routes {
		relaytest.Eventually(t, r.Front.String()+" is served", func() bool {
			who, err := relaytest.Ask(v1.ProtocolTCP, r.Front)
			return err == nil && who == r.Backends[0].Addr
		})
	}
}

// TestLookupFull: a front without room in the map has a socket.
func TestLookupFull(t *testing.T) {
	needsLookup(t)
	h := relaytest.NewHost(t, newSubject())
	routes := []proxy.Route{relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP))}
	h.MustSync(t, routes...)
	fronts := planeOf(h).lookup.fronts
	var err error
	for n := uint32(0); err == nil; n++ {
		err = fronts.Update(lookupKey{Port: n}, uint32(0), ebpf.UpdateNoExist)
	}
	if !errors.Is(err, unix.E2BIG) {
		t.Fatal(err)
	}
	routes = append(routes, relaytest.Route("y", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), h.Endpoint(1, v1.ProtocolTCP)))
	h.MustSync(t, routes...)
	for _, r := range routes {
		if who, err := relaytest.Ask(v1.ProtocolTCP, r.Front); err != nil || who != r.Backends[0].Addr {
			t.Errorf("%s: %s, %v", r.Front, who, err)
		}
	}
	if got := ledFronts(t, h); got != 1 {
		t.Errorf("%v fronts are led, want 1", got)
	}
}

// TestConnectionOfNoFront: a connection to the sockets' own address, and one whose front is gone, are reset.
func TestConnectionOfNoFront(t *testing.T) {
	needsLookup(t)
	h := relaytest.NewHost(t, newSubject())
	h.MustSync(t, relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP)))
	for is4, family := range planeOf(h).lookup.listeners {
		for _, l := range family {
			if _, err := relaytest.Ask(v1.ProtocolTCP, localName(l.fd)); !relaytest.IsReset(err) {
				t.Errorf("IPv4 %v, at %s: %v, want a reset", is4, localName(l.fd), err)
			}
		}
	}
	l := planeOf(h).lookup
	l.mu.Lock()
	c := l.carriers[h.Front(0)]
	delete(l.carriers, h.Front(0))
	l.mu.Unlock()
	if got := relaytest.Meet(t, v1.ProtocolTCP, h.Front(0), false); got != "reset" {
		t.Errorf("at a front that is gone a client meets %s", got)
	}
	l.mu.Lock()
	l.carriers[h.Front(0)] = c
	l.mu.Unlock()
}

// TestStorm: a front with so many connections that they cannot be accepted fills the queue of one socket. Fronts of the
// other sockets are still reachable.
func TestStorm(t *testing.T) {
	needsLookup(t)
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	a := ranged(t, "10.96.0.0/12")
	if err := os.WriteFile("/proc/sys/net/core/somaxconn", []byte("8"), 0); err != nil { // of this namespace
		t.Skip(err)
	}
	h := relaytest.NewHost(t, newSubject(), func(c *relay.Config) { c.Addresses = a })
	var table []proxy.Route
	for i := range lookupSockets {
		table = append(table, relaytest.Route(fmt.Sprint("s", i), proxy.ClusterIP, v1.ProtocolTCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), 80), endpoint))
	}
	h.MustSync(t, table...)
	all := planeOf(h)
	release := sync.OnceFunc(halt(all))
	defer release()

	full := func() (count int) {
		for _, l := range all.lookup.listeners[listenerKind{is4: true}] {
			if info, err := unix.GetsockoptTCPInfo(l.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
				t.Fatal(err)
			} else if info.Unacked > info.Sacked { // for a listening socket: how many wait, and how many may
				count++
			}
		}
		return count
	}
	for range 32 {
		fd, errno := connectSocket(unix.SOCK_STREAM, table[0].Front, netip.Addr{})
		if errno != 0 {
			t.Fatal(errno)
		}
		defer closeSocket(fd)
	}
	if got := full(); got != 1 {
		t.Fatalf("the queues of %d sockets are full, want that of one", got)
	}
	var conns []net.Conn
	for _, r := range table[1:] {
		conn, err := relaytest.Knock(v1.ProtocolTCP, r.Front)
		if err != nil {
			t.Fatalf("%s during a storm at %s: %v", r.Front, table[0].Front, err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	release()
	for i, conn := range conns {
		if who, err := relaytest.Question(conn); err != nil || who != endpoint {
			t.Errorf("%s: %s, %v", table[i+1].Front, who, err)
		}
	}
}

// halt blocks all loops until the returned function is called.
func halt(p *plane) (release func()) {
	gate := make(chan struct{})
	halted := make(chan struct{})
	for _, l := range p.loops {
		l.post(func() {
			halted <- struct{}{}
			<-gate
		})
		<-halted
	}
	return func() { close(gate) }
}

// TestProgramThatSharesNothing: a program that binds a service's port without SO_REUSEADDR is refused while a
// connection through the Service is open, as docs/design/service-proxy.md says, and no longer.
func TestProgramThatSharesNothing(t *testing.T) {
	needsLookup(t)
	endpoint := relaytest.TCPServer(t, relaytest.WhoAndEcho)
	a := ranged(t, "10.96.0.0/12")
	h := relaytest.NewHost(t, newSubject(), func(c *relay.Config) { c.Addresses = a })
	r := relaytest.Route("x", proxy.ClusterIP, v1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.1:80"), endpoint)
	h.MustSync(t, r)
	bind := func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(r.Front.Port())})
	}
	if err := bind(); err != nil {
		t.Errorf("with no connection: %v", err)
	}
	conn := relaytest.DialFront(t, r.Front)
	if _, err := relaytest.Question(conn); err != nil {
		t.Fatal(err)
	}
	if err := bind(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("with a connection: %v", err)
	}
	_ = conn.SetLinger(0) // ends without TIME_WAIT
	_ = conn.Close()
	relaytest.Eventually(t, "the port is free again", func() bool { return bind() == nil })
}
