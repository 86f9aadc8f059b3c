package relaytest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// VisitFrom opens a connection from an address of this host, and reads the server's identity.
func VisitFrom(from netip.Addr, port int, front netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice(), Port: port}, Timeout: time.Minute}
	c, err := dialer.Dial("tcp", front.String())
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Fill opens connections until one is refused, and returns the open ones.
func Fill(t *testing.T, from netip.Addr, front netip.AddrPort, atMost int) (open []net.Conn) {
	t.Helper()
	for range atMost {
		c, err := VisitFrom(from, 0, front)
		switch {
		case err == nil:
			t.Cleanup(func() { _ = c.Close() })
			open = append(open, c)
		case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF): // either connect or the first read sees the reset
			return open
		case os.IsTimeout(err):
			t.Fatalf("after %d: a connection is neither served nor refused: %v", len(open), err)
		default:
			return open
		}
	}
	return open
}

// ClientShare: a client that uses all it can get leaves room for others, and the Service gets one report.
func ClientShare(t *testing.T, subject Subject) {
	heard := make(chan string, 100)
	h := NewHost(t, subject, func(c *relay.Config) {
		c.Capacity = limits.Capacity{Files: 4096, Ports: 40}
		c.Warn = func(service proxy.ServiceName, reason, message string) {
			heard <- service.String() + " " + reason + ": " + message
		}
	})
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Endpoint(0, v1.ProtocolTCP)))
	greedy, second := h.Addr(100), h.Addr(101)
	if open := Fill(t, greedy, h.Front(0), 40); len(open) != 20 {
		t.Fatalf("one client has %d connections to an endpoint, of 40 ports", len(open))
	}
	for range 3 {
		_ = Fill(t, greedy, h.Front(0), 1)
	}
	if got := <-heard; !strings.HasPrefix(got, "a/x ClientLimited: client "+greedy.String()+" ") || !strings.Contains(got, "one address may have 20 TCP connections to one endpoint") {
		t.Errorf("heard %q", got)
	}
	if u := h.Use(t, "source_ports_to_endpoint_of_client"); u.Used != 20 || u.Limit != 20 {
		t.Errorf("metrics say %+v", u)
	}
	// A second one uses the rest, then takes over until it has as much as the first; from then on neither gains.
	for range 30 {
		_ = Fill(t, second, h.Front(0), 1)
	}
	if u := h.Use(t, "source_ports_to_endpoint"); u.Used != 38 || u.Limit != 38 {
		t.Errorf("metrics say %+v", u)
	}
	for n := range 10 {
		if open := Fill(t, h.Addr(byte(110+n)), h.Front(0), 1); len(open) != 1 {
			t.Fatalf("newcomer %d is refused", n)
		}
	}
	select {
	case got := <-heard:
		if strings.Contains(got, "one address may have") {
			t.Errorf("heard again: %q", got)
		}
	default:
	}
}

// SessionsShared: a front that is flooded with packets, by many clients or by one, still serves all others, and so do
// other fronts.
func SessionsShared(t *testing.T, subject Subject) {
	h := NewHost(t, subject, func(c *relay.Config) { c.Capacity = limits.Capacity{Files: 4096, Ports: 80} })
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), h.Endpoint(0, v1.ProtocolUDP)), Route("y", proxy.ClusterIP, v1.ProtocolUDP, h.Front(1), h.Endpoint(0, v1.ProtocolUDP)),
		Route("z", proxy.ClusterIP, v1.ProtocolUDP, h.Front(2), h.Endpoint(0, v1.ProtocolUDP)))
	exchange := func(from netip.Addr, front netip.AddrPort) error {
		c, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(front))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = Question(c)
		return err
	}
	for n := range 200 { // the limit is 40 sessions
		for _, front := range []int{0, 1} {
			from := h.Addr(byte(n)) // many clients at one front, one at the other
			if front == 1 {
				from = h.Addr(250)
			}
			if err := exchange(from, h.Front(front)); err != nil {
				t.Fatalf("packet %d: %v", n, err)
			}
		}
		if n%20 == 0 {
			if err := exchange(h.Addr(251), h.Front(2)); err != nil {
				t.Fatalf("after %d, at another front: %v", n, err)
			}
		}
	}
	for of, want := range map[string]int{"sessions": 40, "sessions_of_front": 20, "sessions_of_client_at_front": 10} {
		if u := h.Use(t, of); u.Limit != want || u.Used > want || u.Used < want/2 {
			t.Errorf("%+v, want %d at most", u, want)
		}
	}
	h.MustSync(t, Route("y", proxy.ClusterIP, v1.ProtocolUDP, h.Front(1), h.Endpoint(0, v1.ProtocolUDP)))
	Eventually(t, "sessions that gave way have ended", func() bool { return h.Open(t) <= 10 })
}
