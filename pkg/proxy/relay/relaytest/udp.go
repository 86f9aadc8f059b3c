package relaytest

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// UDPSession: a client keeps its endpoint while that exists.
func UDPSession(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	udp := h.Endpoints[v1.ProtocolUDP]
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), udp...))
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(h.Front(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	who := func() string {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 100)
		n, err := conn.Read(buffer) // connected: only a reply from the front itself arrives
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(buffer[:n]))
	}
	first := who()
	for range 8 {
		if again := who(); again != first {
			t.Fatalf("one client went to %s and then to %s", first, again)
		}
	}
	var left []netip.AddrPort
	for _, a := range udp {
		if a.String() != first {
			left = append(left, a)
		}
	}
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), left...))
	if again := who(); again == first {
		t.Errorf("went on to %s that is gone", first)
	}
	// An endpoint at which nothing listens any more is abandoned at the first response of its kernel.
	dead := ClosedPort(t)
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), dead))
	_, _ = conn.Write([]byte("lost"))
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), dead, left[0]))
	Eventually(t, "reaches the endpoint that is there", func() bool {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("x")) // may fail, because the dead endpoint's system refused the previous packet
		buffer := make([]byte, 100)
		n, err := conn.Read(buffer)
		return err == nil && strings.TrimSpace(string(buffer[:n])) == left[0].String()
	})
}

// UDPSessionsEnd: an idle session ends.
func UDPSessionsEnd(t *testing.T, subject Subject) {
	h := NewHost(t, subject, func(c *relay.Config) { c.UDPIdle = 100 * time.Millisecond })
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), h.Endpoints[v1.ProtocolUDP]...))
	for range 50 {
		Eventually(t, "an answer within the time of the session", func() bool {
			_, err := Ask(v1.ProtocolUDP, h.Front(0))
			return err == nil
		})
	}
	Eventually(t, "sessions end", func() bool { return h.Open(t) == 0 })
}

// UDPOnLocalhost is the one UDP test that also passes on Wine, which supports one loopback address for packets.
func UDPOnLocalhost(t *testing.T, subject Subject) {
	h := NewHost(t, subject)
	front := ClosedPort(t)
	udp := h.Endpoints[v1.ProtocolUDP]
	h.MustSync(t, Route("x", proxy.ClusterIP, v1.ProtocolUDP, front, udp...))
	seen := map[netip.AddrPort]bool{}
	for range 3 * len(udp) {
		who, err := Ask(v1.ProtocolUDP, front)
		if err != nil {
			t.Fatal(err)
		}
		seen[who] = true
	}
	if len(seen) != len(udp) {
		t.Errorf("reached %v of %v", seen, udp)
	}
}
