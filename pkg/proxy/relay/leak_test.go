package relay

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// newHostWith gives h a Relay on a host that has the given addresses.
func newHostWith(t *testing.T, h *testHost, host ...string) *proxytest.Addresses {
	t.Helper()
	var addrs []netip.Addr
	for _, a := range host {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	fake := proxytest.NewAddresses(addrs...)
	h.relay.Close()
	h.addresses = fake
	h.relay = newRelay(Config{Addresses: fake, Clock: clock.RealClock{}}, planeOf(t))
	t.Cleanup(h.relay.Close)
	return fake
}

// TestNoLeak: after connections in every state, and the end of their front, goroutines and files are as before.
func TestNoLeak(t *testing.T) {
	h := newTestHost(t)
	dead := closedPort(t)
	h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), dead)) // what a plane starts once
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 5 {
		drop := route("drop", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1))
		drop.Drop = true
		h.mustSync(t, route("x", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.endpoints[v1.ProtocolTCP]...), drop,
			route("y", proxy.ClusterIP, v1.ProtocolUDP, h.Front(0), h.endpoints[v1.ProtocolUDP]...), route("z", proxy.ClusterIP, v1.ProtocolTCP, h.Front(2), dead))
		for range 10 {
			_ = meet(t, v1.ProtocolTCP, h.Front(2), false) // is reset
			conn := dialFront(t, h.Front(0))
			if _, err := conn.Write([]byte("hello\n")); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if h.dropped() == "silence" { // the connection is held
				defer dialFront(t, h.Front(1)).Close()
			}
			if _, err := ask(v1.ProtocolTCP, h.Front(0)); err != nil {
				t.Fatal(err)
			}
			if _, err := ask(v1.ProtocolUDP, h.Front(0)); err != nil {
				t.Fatal(err)
			}
		}
		h.mustSync(t)
	}
	// What is left are the clients' own sockets, 20 in each round, whose servers' ends go by themselves.
	eventually(t, "goroutines and files go", func() bool {
		return runtime.NumGoroutine() <= goroutines+1 && openFiles(t) <= files+5*20
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // no such thing on Windows; goroutines are counted there too
	}
	return len(entries)
}

// TestEndpointIsFront: endpoints that lead back to the relay end at once instead of filling it with connections to itself.
func TestEndpointIsFront(t *testing.T) {
	h := newTestHost(t)
	h.mustSync(t, route("a", proxy.ClusterIP, v1.ProtocolTCP, h.Front(0), h.Front(1)), route("b", proxy.ClusterIP, v1.ProtocolTCP, h.Front(1), h.Front(0)),
		route("c", proxy.ClusterIP, v1.ProtocolUDP, h.Front(2), h.Front(2)))
	files := openFiles(t)
	for n := range 2 {
		if got := meet(t, v1.ProtocolTCP, h.Front(n), false); got != "reset" {
			t.Errorf("front %d: meets %s", n, got)
		}
	}
	if got := meet(t, v1.ProtocolUDP, h.Front(2), true); got != "silence" {
		t.Errorf("packets: meets %s", got)
	}
	eventually(t, "files go", func() bool { return openFiles(t) <= files })
}
