package relaytest

import (
	"bufio"
	"bytes"
	"cmp"
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
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// Route returns a Route of service a/NAME.
func Route(name string, kind proxy.Kind, protocol v1.Protocol, front netip.AddrPort, backends ...netip.AddrPort) proxy.Route {
	r := proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: name}}, Kind: kind, Protocol: protocol, Front: front}
	for _, b := range backends {
		r.Backends = append(r.Backends, proxy.Endpoint{Addr: b})
	}
	slices.SortFunc(r.Backends, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return r
}

// Sync syncs a Table of routes, which it sorts.
func (h *Host) Sync(t *testing.T, routes ...proxy.Route) error {
	t.Helper()
	slices.SortFunc(routes, func(a, b proxy.Route) int {
		x, y := a.Service, b.Service
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Port, y.Port), cmp.Compare(a.Kind, b.Kind))
	})
	return h.Relay.Sync(t.Context(), &proxy.Table{Routes: routes}, nil)
}

// MustSync is Sync that must succeed.
func (h *Host) MustSync(t *testing.T, routes ...proxy.Route) {
	t.Helper()
	if err := h.Sync(t, routes...); err != nil {
		t.Fatal(err)
	}
}

// DialFront connects to a front and closes the connection when the test ends.
func DialFront(t *testing.T, front netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(front))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// ClosedPort returns an address at which nothing listens.
func ClosedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), proxytest.FreePort(t))
}

// HalfClose: one side may end before the other.
func HalfClose(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB: copied both with buffers and by the kernel
	upload := TCPServer(t, func(c *net.TCPConn) {          // answers only after the client has ended
		data, err := io.ReadAll(c)
		if err == nil {
			_, _ = fmt.Fprintf(c, "%v", bytes.Equal(data, big))
		}
	})
	ended := make(chan error, 1)
	download := TCPServer(t, func(c *net.TCPConn) { // ends first, then reads the client's data
		_, _ = c.Write(big)
		_ = c.CloseWrite()
		data, err := io.ReadAll(c)
		if err == nil && string(data) != "late" {
			err = fmt.Errorf("heard %q", data)
		}
		ended <- err
	})
	h.MustSync(t, Route("up", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), upload), Route("down", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), download))

	conn := DialFront(t, h.Front(0))
	if _, err := conn.Write(big); err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseWrite()
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "true" {
		t.Errorf("upload: %q, %v", answer, err)
	}
	conn = DialFront(t, h.Front(1))
	if data, err := io.ReadAll(conn); err != nil || !bytes.Equal(data, big) {
		t.Errorf("download: %d bytes, %v", len(data), err)
	}
	if _, err := conn.Write([]byte("late")); err != nil {
		t.Error(err)
	}
	_ = conn.CloseWrite()
	if err := <-ended; err != nil {
		t.Errorf("after its end the server heard: %v", err)
	}
}

// ResetPassesThrough: a reset of one side reaches the other.
func ResetPassesThrough(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	heard := make(chan error, 1)
	server := TCPServer(t, func(c *net.TCPConn) {
		_, err := io.ReadAll(c)
		heard <- err
	})
	rude := TCPServer(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.SetLinger(0)
	})
	h.MustSync(t, Route("server", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), server), Route("rude", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), rude))
	conn := DialFront(t, h.Front(0))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetLinger(0)
	_ = conn.Close()
	if err := <-heard; !IsReset(err) {
		t.Errorf("the server heard %v, want a reset", err)
	}
	conn = DialFront(t, h.Front(1))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); !IsReset(err) {
		t.Errorf("the client heard %v, want a reset", err)
	}
}

// Packets checks a client's result for each case of a Route.
func Packets(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	dead := ClosedPort(t)
	tcp, udp := h.Endpoints[v1.ProtocolTCP], h.Endpoints[v1.ProtocolUDP]
	others := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	us := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")}
	with := func(r proxy.Route, change func(*proxy.Route)) proxy.Route { change(&r); return r }
	near := func(e netip.AddrPort) func(*proxy.Route) {
		return func(r *proxy.Route) { r.Drop, r.Near = true, []proxy.Endpoint{{Addr: e}} }
	}
	for _, c := range []struct {
		name  string
		route proxy.Route
		want  string // endpoint, refused (by the kernel), reset, silence (of a connection, or of packets) or no answer (to a SYN)
	}{
		{"tcp", Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), tcp[0]), tcp[0].String()},
		{"tcp without endpoint", Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0)), "refused"},
		{"tcp on an endpoint that is not there", Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), dead), "reset"},
		{"tcp retried on another endpoint", Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), dead, tcp[1]), tcp[1].String()},
		{"tcp dropped", with(Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0)), func(r *proxy.Route) { r.Drop = true }), subject.dropped()},
		{"tcp from a source that may", with(Route("x", proxy.LoadBalancer, v1.ProtocolTCP, h.Front(0), tcp[0]), func(r *proxy.Route) { r.Sources = us }), tcp[0].String()},
		{"tcp from a source that may not", with(Route("x", proxy.LoadBalancer, v1.ProtocolTCP, h.Front(0), tcp[0]), func(r *proxy.Route) { r.Sources = others }), "reset"},
		{"tcp dropped, but not from this host", with(Route("x", proxy.NodePort, v1.ProtocolTCP, h.Front(0)), near(tcp[0])), tcp[0].String()},
		{"udp", Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), udp[0]), udp[0].String()},
		{"udp without endpoint", Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0)), "refused"},
		{"udp on an endpoint that is not there", Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), dead), subject.unreachable()},
		{"udp dropped", with(Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0)), func(r *proxy.Route) { r.Drop = true }), "silence"},
		{"udp dropped, but not from this host", with(Route("x", proxy.NodePort, v1.ProtocolUDP, h.Front(0)), near(udp[0])), udp[0].String()},
		{"udp from a source that may not", with(Route("x", proxy.LoadBalancer, v1.ProtocolUDP, h.Front(0), udp[0]), func(r *proxy.Route) { r.Sources = others }), "silence"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.MustSync(t, c.route)
			if got := Meet(t, c.route.Protocol, h.Front(0), c.want == "silence" || c.want == "no answer"); got != c.want {
				t.Errorf("a client meets %s, want %s", got, c.want)
			}
		})
	}
}

// Meet returns the result of a client at 127.0.0.1 that connects to a front.
func Meet(t *testing.T, protocol v1.Protocol, front netip.AddrPort, silence bool) string {
	t.Helper()
	patience := time.Minute
	if silence {
		patience = 300 * time.Millisecond
	}
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	network := "tcp4"
	if protocol == v1.ProtocolUDP {
		network, dialer.LocalAddr = "udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	}
	conn, err := dialer.Dial(network, front.String())
	if IsRefused(err) {
		return "refused"
	}
	if IsReset(err) {
		return "reset" // before connect returned
	}
	if os.IsTimeout(err) {
		return "no answer"
	}
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("who\n")); IsReset(err) {
		return "reset"
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	var timeout net.Error
	switch {
	case err == nil:
		return strings.TrimSpace(line)
	case IsReset(err):
		return "reset"
	case IsRefused(err):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silence"
	}
	return err.Error()
}

// HeldUntilEndpointComes: a connection to a front that drops gets an endpoint that is added later. If the front is
// silent, a retransmitted SYN reaches it; otherwise the connection was accepted and held.
func HeldUntilEndpointComes(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	r := Route("x", proxy.NodePort, v1.ProtocolTCP, h.Front(0))
	r.Drop = true
	h.MustSync(t, r)
	conn := subject.dialDropped(t, h.Front(0))
	h.MustSync(t, Route("x", proxy.NodePort, v1.ProtocolTCP, h.Front(0), h.Endpoint(2, v1.ProtocolTCP)))
	if line, err := bufio.NewReader(conn()).ReadString('\n'); err != nil || strings.TrimSpace(line) != h.Endpoint(2, v1.ProtocolTCP).String() {
		t.Errorf("the held connection got %q, %v", line, err)
	}
}

// EstablishedSurvivesChanges: a connection survives every change except the end of its front.
func EstablishedSurvivesChanges(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	tcp := h.Endpoints[v1.ProtocolTCP]
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), tcp[0]))
	conn := DialFront(t, h.Front(0))
	r := bufio.NewReader(conn)
	echo := func(after string) {
		t.Helper()
		if _, err := fmt.Fprintln(conn, after); err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		if line, err := r.ReadString('\n'); err != nil || strings.TrimSpace(line) != after {
			t.Fatalf("after %s: %q, %v", after, line, err)
		}
	}
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	echo("connecting")
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), tcp[1]))
	echo("its endpoint left the route")
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0)))
	echo("the last endpoint left")
	h.MustSync(t, Route("y", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), tcp[2]))
	echo("the front passed to another service")
	h.MustSync(t)
	if _, err := r.ReadString('\n'); !IsReset(err) {
		t.Errorf("after the front is gone: %v, want a reset", err)
	}
}

// Affinity: a client keeps its endpoint for the affinity time, and no longer.
func Affinity(t *testing.T, subject Subject) {
	clock := clocktesting.NewFakeClock(time.Now())
	h := NewHost(t, subject, func(c *relay.Config) { c.Clock = clock })
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		r := Route("x", proxy.ClusterIP, protocol, h.Front(0), h.Endpoints[protocol]...)
		r.Affinity = time.Minute
		h.MustSync(t, r)
		who := func() netip.AddrPort {
			conn, err := Knock(protocol, h.Front(0))
			if err != nil {
				t.Fatal(err)
			}
			// Kept open: a packet from a port that an earlier client used would belong to that client's session.
			t.Cleanup(func() { _ = conn.Close() })
			addr, err := Question(conn)
			if err != nil {
				t.Fatal(err)
			}
			return addr
		}
		first := who()
		for range 10 {
			clock.Step(50 * time.Second) // each connection renews it
			if again := who(); again != first {
				t.Fatalf("%s: went to %s and then to %s", protocol, first, again)
			}
		}
		clock.Step(time.Minute)
		if again := who(); again == first { // round robin continues with the next
			t.Errorf("%s: after its time the client still went to %s", protocol, first)
		}
		first = who()
		left := slices.DeleteFunc(slices.Clone(h.Endpoints[protocol]), func(a netip.AddrPort) bool { return a == first })
		r2 := Route("x", proxy.ClusterIP, protocol, h.Front(0), left...)
		r2.Affinity = time.Minute
		h.MustSync(t, r2)
		second := who()
		if second == first {
			t.Errorf("%s: went to %s that is gone", protocol, first)
		}
		h.MustSync(t, r) // others are added: the client stays
		for range 5 {
			if again := who(); again != second {
				t.Errorf("%s: moved from %s to %s", protocol, second, again)
			}
		}
		h.MustSync(t)
	}
}

// Eventually asks until ok, at most a minute.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: never", what)
		}
	}
}

// NodePort: a node port is served at the host's addresses, or at those to which it is limited, as they are added and
// removed.
func NodePort(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), h.Port)
	at := func(last byte) netip.AddrPort { return netip.AddrPortFrom(h.Addr(last), h.Port) }
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		np := Route("x", proxy.NodePort, protocol, any4, h.Endpoint(0, protocol))
		same := Route("y", proxy.ClusterIP, protocol, h.Front(0), h.Endpoint(1, protocol)) // the same port elsewhere
		h.MustSync(t, np, same)
		expect := func(what string, addr netip.AddrPort, want string) {
			t.Helper()
			if got := Meet(t, protocol, addr, false); got != want {
				t.Errorf("%s %s: %s meets %s, want %s", protocol, what, addr, got, want)
			}
		}
		expect("all", at(200), h.Endpoint(0, protocol).String())
		expect("all", at(201), h.Endpoint(0, protocol).String())
		expect("another's front of that port", h.Front(0), h.Endpoint(1, protocol).String())
		expect("an address that is not the host's", at(202), "refused")
		h.Restart(t, func(c *relay.Config) { c.NodePorts = []netip.Prefix{netip.PrefixFrom(h.Addr(201), 32)} })
		h.MustSync(t, np, same)
		expect("limited", at(200), "refused")
		expect("limited", at(201), h.Endpoint(0, protocol).String())
		h.Restart(t)
		go h.Addresses.SetHost(h.Addr(201), h.Addr(202))
		hints, _ := h.Addresses.Changes(t.Context())
		<-hints
		h.MustSync(t, np, same)
		expect("moved", at(200), "refused")
		expect("moved", at(202), h.Endpoint(0, protocol).String())
		go h.Addresses.SetHost(h.Addr(200), h.Addr(201))
		<-hints
		h.MustSync(t)
	}
}

// Passes: a front that moves from one Service to another in one Sync keeps its address, whichever Service is named
// first, and leads to the new one's endpoint. When the old Service is deleted, the front stays.
func Passes(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	tcp := h.Endpoints[v1.ProtocolTCP]
	b := Route("b", proxy.ExternalIP, v1.ProtocolTCP, h.Front(0), tcp[1])
	a := Route("a", proxy.ExternalIP, v1.ProtocolTCP, h.Front(0), tcp[0])
	h.MustSync(t, b)
	for i, step := range []struct {
		to      proxy.Route
		changed []proxy.ServiceName
	}{
		{a, []proxy.ServiceName{a.Service.ServiceName, b.Service.ServiceName}},
		{b, []proxy.ServiceName{a.Service.ServiceName, b.Service.ServiceName}},
		{a, []proxy.ServiceName{b.Service.ServiceName, a.Service.ServiceName}},
		{b, []proxy.ServiceName{b.Service.ServiceName, a.Service.ServiceName}},
		{b, []proxy.ServiceName{a.Service.ServiceName}},
	} {
		if err := h.Relay.Sync(t.Context(), &proxy.Table{Routes: []proxy.Route{step.to}}, step.changed); err != nil {
			t.Error(err)
		}
		if got := Meet(t, v1.ProtocolTCP, h.Front(0), false); got != step.to.Backends[0].Addr.String() {
			t.Errorf("step %d: meets %s, want %s", i, got, step.to.Backends[0].Addr)
		}
	}
}

// MadeLocal: service addresses are made local, but the host's own and loopback are not.
func MadeLocal(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	ext := func(text string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(text), h.Port) }
	fake := NewAddresses(netip.MustParseAddr("192.0.2.1"))
	h.Addresses = fake
	h.Restart(t)
	tcp := h.Endpoints[v1.ProtocolTCP][0]
	routes := []proxy.Route{
		Route("a", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), tcp),
		Route("b", proxy.ClusterIP, v1.ProtocolTCP, ext("10.96.0.1"), tcp),
		Route("c", proxy.ExternalIP, v1.ProtocolTCP, ext("192.0.2.1"), tcp),
		Route("e", proxy.ClusterIP, v1.ProtocolUDP, ext("10.96.0.1"), tcp),
	}
	err := h.Sync(t, routes...)
	if got := fake.String(); got != "10.96.0.1" {
		t.Errorf("addresses are %q, want only 10.96.0.1", got)
	}
	failed, rest := proxy.RouteErrors(err) // these addresses are not really local, so listening fails
	want := 3
	if subject.Leads() {
		want = 2 // b needs no socket
	}
	if len(failed) != want || len(rest) > 0 {
		t.Errorf("%d failed, want %d: %v", len(failed), want, err)
	}
	if got := Meet(t, v1.ProtocolTCP, h.Front(0), false); got != tcp.String() {
		t.Errorf("the others go on: meets %s", got)
	}
	fake.Break(netip.MustParseAddr("10.96.0.1"), &relay.AddressError{Addr: netip.MustParseAddr("10.96.0.1"), Err: errors.New("no such luck")})
	if err := h.Sync(t, routes[:2]...); err == nil || !strings.Contains(err.Error(), "no such luck") || strings.Contains(err.Error(), "192.0.2") {
		t.Errorf("an address that fails: %v", err)
	}
	h.MustSync(t)
	if got := fake.String(); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// SCTPIsNamed: the error names a protocol that is not served.
func SCTPIsNamed(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	err := h.Sync(t, Route("x", proxy.ClusterIP, v1.ProtocolSCTP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP)))
	if failed, rest := proxy.RouteErrors(err); len(failed) != 1 || len(rest) > 0 || !strings.Contains(err.Error(), "SCTP") {
		t.Error(err)
	}
}

// Churn changes endpoints and fronts under traffic; no request to a front that stays may fail.
func Churn(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	stop := make(chan struct{})
	var clients sync.WaitGroup
	steady := func(protocol v1.Protocol, n ...int) proxy.Route {
		r := Route("steady"+string(protocol), proxy.ClusterIP, protocol, h.Front(0))
		for _, i := range n {
			r.Backends = append(r.Backends, proxy.Endpoint{Addr: h.Endpoint(i, protocol)})
		}
		return r
	}
	h.MustSync(t, steady(v1.ProtocolTCP, 0), steady(v1.ProtocolUDP, 0))
	var count [2]atomic.Int64
	for i, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Ask(protocol, h.Front(0)); err != nil && protocol == v1.ProtocolTCP { // a packet may arrive when its session ends
					t.Errorf("%s: %v", protocol, err)
					return
				}
				count[i].Add(1)
			}
		})
	}
	// On a busy machine many tables are applied before the clients run.
	for i := 0; i < 300 || (count[0].Load() < 20 || count[1].Load() < 1) && !t.Failed(); i++ {
		j := i % 4
		table := []proxy.Route{steady(v1.ProtocolTCP, min(j, 3-j), max(j, 3-j)), steady(v1.ProtocolUDP, j)}
		if i%3 > 0 {
			table = append(table, Route("comes", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1+i%3), h.Endpoint(j, v1.ProtocolTCP)))
		}
		h.MustSync(t, table...)
	}
	close(stop)
	clients.Wait()
	t.Logf("%d connections, %d packets", count[0].Load(), count[1].Load())
}
