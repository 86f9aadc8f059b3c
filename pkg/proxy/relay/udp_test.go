package relay

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

func TestUDPSession(t *testing.T) {
	h := newTestHost(t)
	udp := h.endpoints[v1.ProtocolUDP]
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), udp...))
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(h.Front(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	who := func() string {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 100)
		n, err := conn.Read(buffer) // connected: only an answer from the front itself arrives
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
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), left...))
	if again := who(); again == first {
		t.Errorf("went on to %s that is gone", first)
	}
	// An endpoint at which nobody listens any more is given up with the first answer of its kernel.
	dead := closedPort(t)
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), dead))
	_, _ = conn.Write([]byte("lost"))
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), dead, left[0]))
	eventually(t, "reaches the endpoint that is there", func() bool {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("x")) // may fail: the system of the dead one has said so
		buffer := make([]byte, 100)
		n, err := conn.Read(buffer)
		return err == nil && strings.TrimSpace(string(buffer[:n])) == left[0].String()
	})
}

func TestUDPSessionsEnd(t *testing.T) {
	h := newTestHost(t)
	h.relay.cfg.UDPIdle = 100 * time.Millisecond
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), h.endpoints[v1.ProtocolUDP]...))
	for range 50 {
		if _, err := ask(v1.ProtocolUDP, h.Front(0)); err != nil {
			t.Fatal(err)
		}
	}
	f := h.relay.fronts[frontKey{v1.ProtocolUDP, h.Front(0)}]
	eventually(t, "sessions end", func() bool { return f.carrier.open() == 0 })
}

// TestUDPOnLocalhost is the one UDP test that a Wine host can pass too: Wine knows one loopback address for packets.
func TestUDPOnLocalhost(t *testing.T) {
	h := newTestHost(t)
	front := closedPort(t)
	udp := h.endpoints[v1.ProtocolUDP]
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolUDP, front, udp...))
	seen := map[netip.AddrPort]bool{}
	for range 3 * len(udp) {
		who, err := ask(v1.ProtocolUDP, front)
		if err != nil {
			t.Fatal(err)
		}
		seen[who] = true
	}
	if len(seen) != len(udp) {
		t.Errorf("reached %v of %v", seen, udp)
	}
}
