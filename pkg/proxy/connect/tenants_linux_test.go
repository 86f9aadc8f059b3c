package connect

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/proxy"
)

// udpSocket sends to several Services without being connected.
type udpSocket struct {
	*testing.T
	fd int
}

func newUDPSocket(t *testing.T) *udpSocket {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}); err != nil {
		t.Fatal(err)
	}
	return &udpSocket{t, fd}
}

func (s *udpSocket) send(to string) {
	s.Helper()
	addr := netip.MustParseAddrPort(to)
	if err := unix.Sendto(s.fd, []byte("?"), 0, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
		s.Fatal(err)
	}
}

// answer returns the server's identity, and the source address that the kernel shows.
func (s *udpSocket) answer() (who, from string) {
	s.Helper()
	buffer := make([]byte, 64)
	n, addr, err := unix.Recvfrom(s.fd, buffer, 0)
	for errors.Is(err, unix.EINTR) { // with a time limit a signal ends it, as Go's scheduler sends them
		n, addr, err = unix.Recvfrom(s.fd, buffer, 0)
	}
	at, ok := addr.(*unix.SockaddrInet4)
	if err != nil || !ok {
		s.Fatal(addr, err)
	}
	return string(buffer[:n]), netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)).String()
}

// TestFlowsOfOneSocket: a socket keeps the endpoints of its last 16 Services.
func TestFlowsOfOneSocket(t *testing.T) {
	h := newHost(t)
	var routes []proxy.Route
	h.serve(t, h.pods, "10.1.0.2:53")
	h.serve(t, h.pods, "10.1.0.3:53")
	for n := range flowsOfSocket + 1 {
		routes = append(routes, route(fmt.Sprintf("s%02d 10.96.0.%d:53 10.1.0.2:53 10.1.0.3:53", n, n+1), udp))
	}
	h.to(t, routes...)
	s, first := newUDPSocket(t), map[string]string{}
	for range 3 {
		for n := range flowsOfSocket {
			to := fmt.Sprintf("10.96.0.%d:53", n+1)
			s.send(to)
			who, from := s.answer()
			if first[to] == "" {
				first[to] = who
			}
			expect(t, "endpoint and source of "+to, who+" "+from, first[to]+" "+to)
		}
	}
	s.send(fmt.Sprintf("10.96.0.%d:53", flowsOfSocket+1)) // replaces the first
	s.answer()
	for n := range flowsOfSocket {
		to := fmt.Sprintf("10.96.0.%d:53", n+2)
		s.send(to)
		who, from := s.answer()
		expect(t, "source of "+to, from, to)
		if first[to] != "" {
			expect(t, "endpoint of "+to, who, first[to])
		}
	}
}

// TestFloodOfFlows: a client with more sockets than any map has room for does not affect the socket of another.
func TestFloodOfFlows(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:53")
	h.serve(t, h.pods, "10.1.0.3:53")
	both := []string{"10.96.0.1:53", "10.96.0.2:53"}
	h.to(t, route("a 10.96.0.1:53 10.1.0.2:53 10.1.0.3:53", udp), route("b 10.96.0.2:53 10.1.0.2:53 10.1.0.3:53", udp), route("c 10.96.0.3:53 10.1.0.9:9", udp))
	s, first := newUDPSocket(t), map[string]string{}
	for _, to := range both {
		s.send(to)
		first[to], _ = s.answer()
	}
	for range 40_000 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Sendto(fd, []byte("?"), 0, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{10, 96, 0, 3}})
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range both {
		s.send(to)
		who, from := s.answer()
		expect(t, "after the flood", who+" "+from, first[to]+" "+to)
	}
}

// TestShareOfConnected: one client cannot use up the entries for connected UDP sockets, and gets them back when it
// closes them.
func TestShareOfConnected(t *testing.T) {
	h := newHost(t)
	if !h.kernel.handles.connectsUDP {
		t.Skip("connected UDP is relayed here")
	}
	h.serve(t, h.pods, "10.1.0.2:53")
	h.to(t, route("a 10.96.0.1:53 10.1.0.2:53", udp))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < maxConnectedOfClient+200 {
		t.Skipf("may open %d files, %v", limit.Cur, err)
	}
	var held []int
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	another := func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, fd)
		return unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{10, 96, 0, 1}})
	}
	for range maxConnectedOfClient {
		if err := another(); err != nil {
			t.Fatalf("after %d sockets: %v", len(held), err)
		}
	}
	full := map[string]string{}
	for _, u := range h.kernel.Uses() {
		full[u.Of] = fmt.Sprint(u.Used, " of ", u.Limit)
	}
	expect(t, "UDP sockets of one client", full["udp_sockets_of_client"], fmt.Sprint(maxConnectedOfClient, " of ", maxConnectedOfClient))
	expect(t, "UDP sockets", full["udp_sockets"], fmt.Sprint(maxConnectedOfClient, " of ", maxConnected))
	if err := unix.Connect(held[0], &unix.SockaddrInet4{Port: 53, Addr: [4]byte{10, 96, 0, 1}}); err == nil {
		t.Error("a client at its share connects a socket once more: is it counted twice when it closes?")
	}
	expect(t, "beyond the share: left to the relay, which is not here", reason(another()), unix.ENETUNREACH.Error())
	h.inside(t, h.pods, func() error {
		expect(t, "another client", ask("udp", "10.96.0.1:53", nil), "10.1.0.2:53 10.1.0.2")
		return nil
	})
	for _, fd := range held {
		unix.Close(fd)
	}
	held = nil
	for range 3 {
		expect(t, "when they are closed", ask("udp", "10.96.0.1:53", nil), "10.1.0.2:53 10.1.0.1")
	}
	var client uint64
	var count int64
	for all := h.kernel.maps["clients"].Iterate(); all.Next(&client, &count); {
		if count != 0 {
			t.Errorf("client %d: counted %d sockets, of which all are closed", client, count)
		}
	}
}

// TestFloodOfAffinity: a client that others have evicted from the affinity map keeps its endpoint, and clients are
// spread over all endpoints.
func TestFloodOfAffinity(t *testing.T) {
	h := newHost(t)
	text, count := "a 10.96.0.1:80", map[string]int{}
	for n := 2; n < 10; n++ {
		h.serve(t, h.pods, fmt.Sprintf("10.1.0.%d:80", n))
		text += fmt.Sprintf(" 10.1.0.%d:80", n)
	}
	h.to(t, route(text, func(r *proxy.Route) { r.Affinity = 24 * time.Hour }))
	had := ask("tcp", "10.96.0.1:80", nil)
	keys, values := make([]affinityKey, 4096), make([]affinityValue, 4096)
	for round := range 3 {
		for from := uint64(0); from < 2*maxClients; from += uint64(len(keys)) {
			for i := range keys {
				keys[i] = affinityKey{Namespace: 1<<40 + uint64(round)<<20 + from + uint64(i), Front: 1}
			}
			if _, err := h.kernel.maps["affinity"].BatchUpdate(keys, values, &ebpf.BatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, "pushed out", ask("tcp", "10.96.0.1:80", nil), had)
		for _, u := range h.kernel.Uses() {
			if u.Of == "affinity_clients" && (u.Used < u.Limit/2 || u.Used > u.Limit || u.Limit != maxClients) { // the kernel evicts ahead
				t.Errorf("%d of %d clients are remembered, want nearly all", u.Used, u.Limit)
			}
		}
	}
	runtime.LockOSThread() // and never unlocked: this thread ends in another namespace
	for range 200 {        // so many that chance leaves no endpoint without one
		space, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 96, 0, 1}}) // there is no route, but the program does not know that yet
		unix.Close(fd)
		space.Close()
	}
	if err := netns.Set(h.own); err != nil {
		t.Fatal(err)
	}
	runtime.UnlockOSThread()
	var key affinityKey
	var value affinityValue
	for all := h.kernel.maps["affinity"].Iterate(); all.Next(&key, &value); {
		if value.Port != 0 {
			count[value.AddrPort().String()]++
		}
	}
	for who, n := range count {
		if n > 75 {
			t.Errorf("%s has %d of 200 clients", who, n)
		}
	}
	if len(count) != 8 {
		t.Errorf("200 clients have %d of 8 endpoints: %v", len(count), count)
	}
}
