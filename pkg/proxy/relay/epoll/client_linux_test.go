package epoll

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// uninterrupted repeats a call that a signal has interrupted (the Go scheduler sends them): the kernel does not restart calls with a time limit.
func uninterrupted(call func() (int, error)) (n int, err error) {
	for n, err = call(); errors.Is(err, unix.EINTR); {
		n, err = call()
	}
	return n, err
}

// talk sends a request to an endpoint as a client and returns the answer.
func talk(t *testing.T, kind int, to netip.AddrPort, client netip.Addr) string {
	t.Helper()
	fd, errno := connectSocket(kind, to, client)
	if errno != 0 {
		t.Fatalf("connect to %s as %s: %v", to, client, errno)
	}
	defer closeSocket(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	timeout := unix.NsecToTimeval(int64(time.Minute))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	if kind == unix.SOCK_DGRAM {
		if _, err := unix.Write(fd, []byte("who")); err != nil {
			t.Fatal(err)
		}
	} else {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, err := uninterrupted(func() (int, error) { return unix.Poll(poll, 60_000) }); n != 1 {
			t.Fatalf("no connection to %s as %s: %v", to, client, err)
		}
	}
	buffer := make([]byte, 64)
	n, err := uninterrupted(func() (int, error) { return unix.Read(fd, buffer) })
	if err != nil {
		t.Fatalf("no answer of %s to %s: %v", to, client, err)
	}
	return string(buffer[:n])
}

// TestClientKept: an endpoint sees the client's address, and its replies come back here; with the last service that
// needs this, all rules and routes are removed.
func TestClientKept(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	seen := nstest.PodBehind(t)
	if !a.LeadsAnswers() {
		t.Skip("sockets with a client's address are not allowed here")
	}
	local := relay.Local{Addresses: nstest.Addrs("10.96.0.1"), Answers: true}
	if !hold(t, a, local) {
		t.Fatal("answers are not led back")
	}
	for _, pair := range [][2]string{{"198.51.100.9", "10.9.0.2:7"}, {"fd51::9", "[fd09::2]:7"}} {
		client, endpoint := netip.MustParseAddr(pair[0]), netip.MustParseAddrPort(pair[1])
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			if got := talk(t, kind, endpoint, client); got != "hello" {
				t.Errorf("%s as %s: %q", endpoint, client, got)
			}
			if got := <-seen; got != client {
				t.Errorf("%s saw %s; want %s", endpoint, got, client)
			}
		}
	}
	if _, err := a.Set(t.Context(), relay.Local{}); err != nil {
		t.Fatal(err)
	}
	if got := nstest.AnswerTraces(t); got != "0 rules, 0 routes" {
		t.Errorf("cleaned up: %s", got)
	}
}

// TestApart: replies pass through this host only if it is between client and endpoint.
func TestApart(t *testing.T) {
	nstest.In(t)
	nstest.PodBehind(t)
	for _, test := range []struct {
		client, endpoint string
		want             bool
	}{
		{"198.51.100.9", "10.9.0.2", true},
		{"fd51::9", "fd09::2", true},
		{"10.9.0.3", "10.9.0.2", false},     // a neighbour of the endpoint, which is answered directly
		{"192.0.2.1", "10.9.0.2", false},    // this host
		{"127.0.0.1", "10.9.0.2", false},    // this host
		{"198.51.100.9", "10.9.0.1", false}, // an endpoint in the host's own network
		{"203.0.113.1", "10.9.0.2", false},  // no route to it
		{"198.51.100.9", "fd09::2", false},  // no address of that family
	} {
		if got := apart(netip.MustParseAddr(test.client), netip.MustParseAddr(test.endpoint)); got != test.want {
			t.Errorf("apart(%s, %s): %t", test.client, test.endpoint, got)
		}
	}
}
